#include "cpu/attention/merged_rows.h"

#include <algorithm>

namespace kvlathe {
namespace {

PartialRows RowsFrom(const PartialRows& rows, int first, int width) {
  return {rows.o + int64_t{first} * width, rows.row_max + first, rows.row_sum + first};
}

const std::byte* RowAt(const void* rows, int64_t row, int64_t stride, DType row_type) {
  return static_cast<const std::byte*>(rows) + row * stride * SizeOf(row_type);
}

// Entries that the rows of a call see, all the same.
struct SeenEntries {
  int begin = 0;
  int end = 0;
};

class MergedAttention {
 public:
  MergedAttention(const MergedItem& item, const AttendParams& params)
      : m_(item), params_(params), group_(item.job.gqa_group), width_(item.job.output_width()) {}

  void Run() {
    const int first = m_.item.row_begin / group_, end = m_.item.row_end / group_;
    const PartialRows all = {params_.o, params_.row_max, params_.row_sum};
    const int shared = params_.is_deterministic ? 0 : Closed(first);
    const bool is_first = m_.item.entry_begin == 0;
    AttendEntries(0, params_.n_rows, {params_.kv_begin, std::min(params_.kv_end, shared)}, all);
    for (int t = first; is_first && t < end;) {
      int next = t + 1;
      while (next < end && Closed(next) == Closed(t)) ++next;
      const int row = (t - first) * group_, n_rows = (next - t) * group_;
      if (Closed(t) > shared) {
        AttendEntries(row, n_rows, {shared, Closed(t)}, m_.spare);
        MergePartial(m_.spare, n_rows, width_, RowsFrom(all, row, width_));
      }
      for (; t < next; ++t) AddOwnRow(t, RowsFrom(all, (t - first) * group_, width_));
    }
  }

 private:
  int Closed(int token) const { return std::max(0, m_.job.merged.n_closed[token]); }

  const float* OffsetsFrom(int64_t row) const {
    return params_.score_offsets == nullptr ? nullptr : params_.score_offsets + row;
  }

  // n_rows rows from first_row on, which see the same entries: to the kernel they are one token.
  void AttendEntries(int first_row, int n_rows, SeenEntries seen, const PartialRows& to) const {
    AttendParams call = params_;
    call.gqa_group = call.n_rows = n_rows;
    call.q = RowAt(params_.q, first_row, params_.q_stride, params_.shape.row_type);
    call.score_offsets = OffsetsFrom(first_row);
    call.kv_begin = seen.begin / kBlockSize * kBlockSize;
    call.first_visible = call.kv_end = std::max(call.kv_begin, seen.end);
    call.window = seen.begin > call.kv_begin ? seen.end - seen.begin : kNoWindow;
    call.o = to.o;
    call.row_max = to.row_max;
    call.row_sum = to.row_sum;
    m_.kernels.attend(call, m_.scratch);
  }

  void AddOwnRow(int token, const PartialRows& to) const {
    const MergedRows& merged = m_.job.merged;
    const DType row_type = params_.shape.row_type;
    if (merged.n_closed[token] < 0) return;
    const int64_t row = int64_t{token} * group_ - m_.item.row_begin;
    m_.kernels.attend_rows({.row_type = row_type,
                            .head_dim = params_.shape.rank_k,
                            .rank_v = m_.job.shape.rank_v,
                            .gqa_group = group_,
                            .n_rows = group_,
                            .q = RowAt(params_.q, row, params_.q_stride, row_type),
                            .q_stride = params_.q_stride,
                            .k = RowAt(m_.at.merged_k(), token, merged.k_stride, row_type),
                            .v = RowAt(m_.at.merged_v(), token, merged.v_stride, row_type),
                            .n_entries = 1,
                            .first_visible = 1,
                            .sm_scale = params_.sm_scale,
                            .score_cap = params_.score_cap,
                            .score_offsets = OffsetsFrom(row),
                            .o = m_.spare.o,
                            .o_stride = width_,
                            .row_max = m_.spare.row_max,
                            .row_sum = m_.spare.row_sum});
    MergePartial(m_.spare, group_, width_, to);
  }

  const MergedItem& m_;
  const AttendParams& params_;
  int group_, width_;
};

}  // namespace

void AttendMerged(const MergedItem& item, const AttendParams& params) {
  MergedAttention(item, params).Run();
}

}  // namespace kvlathe
