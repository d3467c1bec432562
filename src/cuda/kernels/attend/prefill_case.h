// Problems of attention of many rows for tests: a head of the host on a GPU, and how what comes out
// is judged.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "cuda/attention/expand_runs.h"
#include "cuda/kernels/attend/prefill.h"
#include "cuda/testing/device_array.h"

namespace kvlathe::cuda {

// Objects of the host, which lie on the GPU once Upload was called.
class PromptArena {
 public:
  int64_t Add(const std::byte* from, int64_t n_bytes) {
    const auto [at, is_new] = places_.try_emplace(from, std::ssize(bytes_));
    if (!is_new) return at->second;
    bytes_.insert(bytes_.end(), from, from + n_bytes);
    bytes_.resize((bytes_.size() + 63) / 64 * 64, std::byte{0xff});
    return at->second;
  }
  void Upload() { device_ = std::make_unique<DeviceArray<std::byte>>(bytes_); }
  const std::byte* base() const { return device_->data(); }

 private:
  std::map<const std::byte*, int64_t> places_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceArray<std::byte>> device_;
};

// A job of one head. Pointers are the host's.
struct PromptProblem {
  BlockShape shape;
  std::vector<const std::byte*> blocks;
  const PackedHead* packed = nullptr;
  int gqa_group = 1;
  std::vector<uint16_t> q;  // Bf16
  int64_t q_stride = 0;
  AttendRefParams reference;       // with what blocks and queries stand for
  std::vector<float> sink_logits;  // by query head; empty: none
  // The magnitudes that are rounded where a number of K and of V is made of codes; empty where
  // none are.
  std::vector<double> k_parts, v_parts;
};

// Where rows are split, and into what.
struct PromptCut {
  int rows = kMostPromptRows;  // of an item, whole tokens
  int n_parts = 1;             // of the entries
};

struct PromptOutput {
  std::vector<float> o, row_max, row_sum;  // row_sum is empty where items finished
};

inline SealedRun IdsOf(const PackedRun& run) {
  return {.first_block = run.first_block,
          .n_blocks = run.n_blocks,
          .is_prompt = run.is_prompt,
          .is_repaired = run.is_repaired,
          .entry_class = run.entry_class};
}

inline SealedHead IdsOf(const PackedHead& head) {
  SealedHead ids = {.format = head.format,
                    .storage = head.storage,
                    .kv_head_idx = head.kv_head_idx,
                    .n_kv_heads = head.n_kv_heads,
                    .layer_rank_v = head.layer_rank_v};
  ids.rotation.half = head.rotation.half;
  return ids;
}

// The problem on the GPU.
class PromptOnDevice {
 public:
  explicit PromptOnDevice(const PromptProblem& problem)
      : problem_(problem), q_(problem.q), blocks_(Places()) {
    MakeRuns();
  }

  PromptHead Head() const {
    const AttendRefParams& r = problem_.reference;
    return {.rank_k = problem_.shape.rank_k,
            .rank_v = problem_.shape.rank_v,
            .width = problem_.shape.rank_v,
            .gqa_group = problem_.gqa_group,
            .stored_rank_k = problem_.shape.rank_k,
            .q = q_.data(),
            .q_stride = problem_.q_stride,
            .q_token_stride = problem_.gqa_group * problem_.q_stride,
            .blocks = blocks_.data(),
            .runs = runs_ == nullptr ? nullptr : runs_->data(),
            .n_runs = runs_ == nullptr ? 0 : static_cast<int>(runs_->size()),
            .first_visible = r.first_visible,
            .window = r.window == kNoWindow ? 0 : r.window};
  }
  const std::byte* base() const { return arena_.base(); }

 private:
  PackedShape ShapeOf(const PackedRun& run) const {
    const PackedHead& head = *problem_.packed;
    return MakePackedShape(head.format, problem_.shape, head.storage,
                           {.n_kv_heads = head.n_kv_heads,
                            .layer_rank_v = head.layer_rank_v,
                            .n_blocks = run.n_blocks,
                            .is_prompt = run.is_prompt,
                            .is_repaired = run.is_repaired,
                            .entry_class = run.entry_class});
  }
  int64_t BytesOfBlock(int block) const {
    if (problem_.packed == nullptr) return BlockBytes(problem_.shape);
    int idx = 0;
    const PackedRun* const run = FindRunOf(block, &idx);
    if (run == nullptr) return BlockBytes(problem_.shape);
    if (run->is_open) return OpenBlockBytes(problem_.packed->format.codec, problem_.shape);
    return PackedBlockBytes(ShapeOf(*run));
  }
  const PackedRun* FindRunOf(int block, int* idx) const {
    const PackedHead& head = *problem_.packed;
    for (; *idx < head.n_runs; ++*idx) {
      if (block < head.runs[*idx].first_block + head.runs[*idx].n_blocks) return &head.runs[*idx];
    }
    return head.open.n_blocks > 0 ? &head.open : nullptr;
  }
  std::vector<uint32_t> Places() {
    std::vector<uint32_t> places;
    for (size_t b = 0; b < problem_.blocks.size(); ++b) {
      if (problem_.blocks[b] == nullptr) {
        places.push_back(0xffffffffu);
        continue;
      }
      const int64_t at = arena_.Add(problem_.blocks[b], BytesOfBlock(static_cast<int>(b)));
      places.push_back(static_cast<uint32_t>(at / 64));
    }
    if (problem_.packed != nullptr) {
      for (int i = 0; i < problem_.packed->n_runs; ++i) {
        const PackedRun& run = problem_.packed->runs[i];
        const PackedShape shape = ShapeOf(run);
        records_.push_back(arena_.Add(run.record, RunRecordBytes(shape)));
        layer_records_.push_back(run.layer_record == nullptr
                                     ? 0
                                     : arena_.Add(run.layer_record, LayerRecordBytes(shape)));
      }
    }
    arena_.Upload();
    return places;
  }
  void MakeRuns() {
    if (problem_.packed == nullptr) return;
    std::vector<ExpandRun> runs;
    for (int i = 0; i < problem_.packed->n_runs; ++i) {
      ExpandAddresses at = {.record = base() + records_[i],
                            .layer_record = base() + layer_records_[i]};
      AddModel(&at);
      runs.push_back(MakeExpandRun(problem_.shape, IdsOf(*problem_.packed),
                                   IdsOf(problem_.packed->runs[i]), at));
    }
    const PackedRun& open = problem_.packed->open;
    if (open.n_blocks > 0) {
      runs.push_back(MakeOpenRun(problem_.shape, {open.first_block, open.n_blocks}));
    }
    runs_ = std::make_unique<DeviceArray<ExpandRun>>(runs);
  }

  // What codebooks and rotations bring.
  void AddModel(ExpandAddresses* at) {
    const PackedHead& head = *problem_.packed;
    if (head.codebooks == nullptr) return;
    at->key_book = &head.codebooks->k;
    at->value_book = &head.codebooks->v;
    key_scales_ =
        std::make_unique<DeviceArray<float>>(head.codebooks->key_scales[head.kv_head_idx]);
    at->key_scales = key_scales_->data();
    const auto n = static_cast<int64_t>(problem_.blocks.size()) * kBlockSize * head.rotation.half;
    if (n == 0) return;
    cos_ = std::make_unique<DeviceArray<float>>(
        std::vector<float>(head.rotation.cos, head.rotation.cos + n));
    sin_ = std::make_unique<DeviceArray<float>>(
        std::vector<float>(head.rotation.sin, head.rotation.sin + n));
    at->cos = cos_->data();
    at->sin = sin_->data();
  }

  const PromptProblem& problem_;
  PromptArena arena_;
  std::vector<int64_t> records_, layer_records_;
  DeviceArray<uint16_t> q_;
  DeviceArray<uint32_t> blocks_;
  std::unique_ptr<DeviceArray<ExpandRun>> runs_;
  std::unique_ptr<DeviceArray<float>> key_scales_, cos_, sin_;
};

// Merges the parts of rows.
inline void MergePart(const float* partial, int n_rows, int rank_v, int first_row,
                      PromptOutput* to) {
  const float* const maxima = partial + int64_t{n_rows} * rank_v;
  const float* const sums = maxima + (n_rows + 15) / 16 * 16;
  for (int row = 0; row < n_rows; ++row) {
    if (sums[row] == 0) continue;
    const int at = first_row + row;
    const float max = std::max(to->row_max[at], maxima[row]);
    const float old = std::exp(to->row_max[at] - max), more = std::exp(maxima[row] - max);
    to->row_max[at] = max;
    to->row_sum[at] = to->row_sum[at] * old + sums[row] * more;
    for (int r = 0; r < rank_v; ++r) {
      float& o = to->o[at * rank_v + r];
      o = o * old + partial[row * rank_v + r] * more;
    }
  }
}

inline std::vector<PromptItem> ItemsOf(const PromptProblem& problem, const PromptCut& split,
                                       int64_t* n_floats) {
  const int n_rows = problem.reference.n_rows;
  const int n_blocks = static_cast<int>(problem.blocks.size());
  const int group = problem.gqa_group, rows = split.rows / group * group;
  std::vector<PromptItem> items;
  for (int row = 0; row < n_rows; row += rows) {
    for (int part = 0; part < split.n_parts; ++part) {
      const int first = n_blocks * part / split.n_parts * kBlockSize;
      const int last = n_blocks * (part + 1) / split.n_parts * kBlockSize;
      PromptItem item = {.row_begin = row,
                         .n_rows = std::min(rows, n_rows - row),
                         .entry_begin = std::max(first, problem.reference.kv_begin),
                         .entry_end = std::min(last, problem.reference.kv_end)};
      if (split.n_parts > 1) {
        item.partial_offset = *n_floats;
        *n_floats += PartialFloats(item.n_rows, problem.shape.rank_v);
      }
      items.push_back(item);
    }
  }
  return items;
}

inline PromptOutput RunPrompt(const PromptProblem& problem, const PromptCut& split) {
  const PromptOnDevice on_device(problem);
  const int n_rows = problem.reference.n_rows, rank_v = problem.shape.rank_v;
  PromptHead head = on_device.Head();
  DeviceArray<float> o(int64_t{n_rows} * rank_v);
  const std::vector<float>& logits = problem.sink_logits;
  const DeviceArray<float> sink_logits(logits.empty() ? std::vector<float>(1) : logits);
  if (!logits.empty()) head.sink_logits = sink_logits.data();
  head.out = o.data();
  head.out_stride = int64_t{problem.gqa_group} * rank_v;
  head.out_head_stride = rank_v;
  int64_t n_floats = 0;
  const std::vector<PromptItem> list = ItemsOf(problem, split, &n_floats);
  const DeviceArray<PromptItem> items(list);
  const DeviceArray<PromptHead> heads(std::vector<PromptHead>{head});
  const DeviceArray<float> partials(std::max<int64_t>(n_floats, 1));
  AttendPrompt(nullptr, {.base = on_device.base(),
                         .heads = heads.data(),
                         .items = items.data(),
                         .n_items = static_cast<int>(list.size()),
                         .sm_scale = static_cast<float>(problem.reference.sm_scale),
                         .score_cap = static_cast<float>(problem.reference.score_cap),
                         .partials = partials.data(),
                         .most_rank_k = problem.shape.rank_k,
                         .most_rank_v = rank_v,
                         .most_width = rank_v,
                         .most_rows = std::min(split.rows, n_rows),
                         .tables = MakeWindowTables()});
  if (n_floats == 0) return {o.Download(), {}, {}};
  const std::vector<float> parts = partials.Download();
  PromptOutput merged = {std::vector<float>(n_rows * rank_v),
                         std::vector<float>(n_rows, -std::numeric_limits<float>::infinity()),
                         std::vector<float>(n_rows)};
  for (const PromptItem& item : list) {
    MergePart(parts.data() + item.partial_offset, item.n_rows, rank_v, item.row_begin, &merged);
  }
  for (int row = 0; row < n_rows; ++row) {
    for (int r = 0; r < rank_v && merged.row_sum[row] > 0; ++r) {
      merged.o[row * rank_v + r] /= merged.row_sum[row];
    }
  }
  return merged;
}

// AttendRef with sink logits.
inline AttendRefResult PromptReference(const PromptProblem& problem, const AttendRefParams& r) {
  AttendRefResult all = AttendRef(r);
  for (int row = 0; row < r.n_rows && !problem.sink_logits.empty(); ++row) {
    const double logit = problem.sink_logits[row % r.gqa_group];
    const double max = std::max(all.row_max[row], logit);
    const double before = all.row_sum[row] == 0 ? 0 : std::exp(all.row_max[row] - max);
    const double of_entries = all.row_sum[row] * before;
    all.row_max[row] = max;
    all.row_sum[row] = of_entries + std::exp(logit - max);
    for (int c = 0; c < r.rank_v; ++c) {
      all.o[row * r.rank_v + c] *= of_entries / all.row_sum[row];
      all.o_abs[row * r.rank_v + c] *= of_entries / all.row_sum[row];
    }
  }
  return all;
}

// The largest relative error of what is rounded to Bf16. Numbers that are made of codes are rounded
// up to three times, but their parts are rarely as large as their sum.
inline constexpr double kRounding = 0x1p-8;

// Four deviations of a row's scores under independent errors of the numbers of K.
inline double ScoreError(const PromptProblem& problem, int row) {
  const AttendRefParams& r = problem.reference;
  double most = 0, largest = 0;
  for (int t = r.kv_begin; t < r.kv_end; ++t) {
    double squares = 0, score = 0;
    for (int c = 0; c < r.rank_k; ++c) {
      const size_t at = size_t(t) * r.rank_k + c;
      const double q = r.q[size_t(row) * r.rank_k + c];
      score += q * r.k[at];
      const double part = problem.k_parts.empty() ? 0 : q * problem.k_parts[at];
      squares += part * part;
    }
    most = std::max(most, squares);
    largest = std::max(largest, std::abs(score));
  }
  return r.sm_scale * (4 / std::sqrt(3.0) * kRounding * std::sqrt(most) + 2e-6 * largest);
}

// Weights are rounded to Bf16, and scores move by ScoreError: a weight by twice that, because the
// sum moves too. What the numbers of V lose comes on top.
inline void ExpectRight(const PromptProblem& problem, const PromptCut& split,
                        const std::string& what) {
  const PromptOutput got = RunPrompt(problem, split);
  const AttendRefResult want = PromptReference(problem, problem.reference);
  AttendRefParams of_parts = problem.reference;
  if (!problem.v_parts.empty()) of_parts.v = problem.v_parts;
  const AttendRefResult parts = PromptReference(problem, of_parts);
  const int rank_v = problem.shape.rank_v;
  for (int row = 0; row < problem.reference.n_rows; ++row) {
    const double score_error = ScoreError(problem, row);
    if (!got.row_sum.empty() && want.row_sum[row] > 0) {
      ASSERT_NEAR(got.row_max[row], want.row_max[row], score_error + 1e-5)
          << what << " row " << row;
      ASSERT_NEAR(got.row_sum[row] / want.row_sum[row], 1, 2 * score_error + 1e-4)
          << what << " row " << row;
    }
    for (int r = 0; r < rank_v; ++r) {
      const size_t at = size_t(row) * rank_v + r;
      double allowed = (kRounding + 2 * score_error) * want.o_abs[at] + 1e-6;
      if (!problem.v_parts.empty()) allowed += kRounding * parts.o_abs[at];
      ASSERT_NEAR(got.o[at], want.o[at], allowed) << what << " row " << row << " channel " << r;
    }
  }
}

}  // namespace kvlathe::cuda
