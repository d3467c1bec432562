#include "cpu/attention/job_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/units.h"

namespace kvlathe {
namespace {

// Whether blocks are rebuilt for a job of which a worker gets one of n_shares of its rows.
bool IsRebuilt(const HeadJob& job, int n_shares) {
  const RebuildIds& rebuilt = job.rebuilt;
  if (rebuilt.keys.empty() || job.shape.row_type != DType::kBf16) return false;
  if (job.is_scored() || job.merged.n_closed != nullptr) return false;
  const bool turns = !job.frames.maps.empty() || job.frames.n_pairs > 0;
  return IsWorthRebuilding(job.shape, rebuilt.head_dim, turns,
                           job.n_tokens * job.gqa_group / n_shares);
}

}  // namespace

void ListParts(std::span<const HeadJob> jobs, int n_workers, bool rebuilds,
               std::vector<JobPart>* parts, std::vector<JobSize>* sizes) {
  parts->clear();
  sizes->clear();
  const int n_shares = std::max(1, n_workers / std::max(1, static_cast<int>(jobs.size())));
  for (int i = 0; i < static_cast<int>(jobs.size()); ++i) {
    const HeadJob& job = jobs[i];
    JobSize size = {.n_tokens = job.n_tokens,
                    .gqa_group = job.gqa_group,
                    .n_entries = job.n_entries,
                    .first_visible = job.first_visible,
                    .rank_k = job.latents.empty() ? job.shape.rank_k : job.latents.key_dim,
                    .rank_v = job.output_width(),
                    .is_scored = job.is_scored()};
    if (!rebuilds || !IsRebuilt(job, n_shares)) {
      parts->push_back({.job_idx = i});
      sizes->push_back(size);
      continue;
    }
    size.is_rebuilt = true;
    size.rank_k = job.rebuilt.head_dim;
    for (int map = 0; map < static_cast<int>(job.rebuilt.keys.size()); ++map) {
      parts->push_back({i, map});
      size.gqa_group = parts->back().Group(job);
      sizes->push_back(size);
    }
  }
}

const std::byte* RowAt(const void* rows, int64_t row, int64_t stride, DType row_type) {
  return static_cast<const std::byte*>(rows) + row * stride * SizeOf(row_type);
}

RebuiltQueries QueriesOfPart(const HeadJob& job, const JobAddresses& at, const JobPart& part,
                             int first_token) {
  const int64_t stride = job.q_full_stride;
  const int64_t row = int64_t{first_token} * job.gqa_group + part.FirstHead(job);
  return {at.q_full() + (row * stride + part.map * job.rebuilt.head_dim) * SizeOf(DType::kBf16),
          job.gqa_group * stride, stride};
}

SinkQueries QueriesOfSink(const HeadJob& job, const JobAddresses& at, const JobPart& part,
                          const WorkItem& item, std::byte* scratch) {
  const DType row_type = job.shape.row_type;
  const int group = part.Group(job);
  if (!part.is_rebuilt()) {
    return {RowAt(at.q_full(), item.row_begin, job.q_full_stride, row_type), job.q_full_stride,
            group};
  }
  // Side by side, with the zeros for other KV heads of the model.
  const int64_t row_bytes = job.head_dim * SizeOf(row_type);
  std::byte* to = scratch;
  for (int row = item.row_begin; row < item.row_end; ++row, to += row_bytes) {
    const int64_t from = int64_t{row / group} * job.gqa_group + part.FirstHead(job) + row % group;
    std::memcpy(to, RowAt(at.q_full(), from, job.q_full_stride, row_type), row_bytes);
  }
  return {scratch, job.head_dim, group};
}

int64_t PartScratchBytes(const HeadJob& job, const JobPart& part, int n_rows) {
  if (!part.is_rebuilt()) return 0;
  const int64_t sink_bytes = RoundUp(n_rows * job.head_dim * SizeOf(job.shape.row_type), 64);
  return std::max(sink_bytes, RebuiltScratchBytes(job.shape, job.rebuilt.head_dim, n_rows));
}

void FindLostProducts(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
                      std::span<float> lost) {
  const auto* const keys = own.As<const float>(job.lost_keys);
  const std::byte* const q = own.At(job.q_full);
  const int group = part.Group(job);
  constexpr int kStep = 128;  // channels of a query at a time
  float channels[kStep];
  for (size_t i = 0; i < lost.size(); ++i) {
    const int64_t row = row_begin + static_cast<int64_t>(i);
    const int64_t of_job = row / group * job.gqa_group + part.FirstHead(job) + row % group;
    const std::byte* const query = RowAt(q, of_job, job.q_full_stride, job.shape.row_type);
    lost[i] = 0;
    for (int first = 0; first < job.head_dim; first += kStep) {
      const int n = std::min(kStep, job.head_dim - first);
      ConvertToFloat(job.shape.row_type, query + first * SizeOf(job.shape.row_type), n, channels);
      for (int r = 0; r < n; ++r) lost[i] += channels[r] * keys[first + r];
    }
  }
}

void AddSinkLogits(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
                   const ScoreRule& rule, const PartialRows& partial, int n_rows) {
  if (job.sink_logits.is_null()) return;
  const auto* const logits = own.As<const float>(job.sink_logits) + part.FirstHead(job);
  const int group = part.Group(job), width = job.output_width();
  const bool is_less = !job.lost_keys.is_null() && rule.cap == 0;
  for (int row = 0; row < n_rows; ++row) {
    float lost = 0;
    if (is_less) FindLostProducts(own, job, part, row_begin + row, {&lost, 1});
    const float logit = logits[(row_begin + row) % group] - rule.scale * lost;
    float& row_max = partial.row_max[row];
    if (logit > row_max) {
      const float scale = std::exp(row_max - logit);
      float* const o = partial.o + int64_t{row} * width;
      for (int i = 0; i < width; ++i) o[i] *= scale;
      partial.row_sum[row] *= scale;
      row_max = logit;
    }
    partial.row_sum[row] += std::exp(logit - row_max);
  }
}

void WriteRows(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
               int n_rows, const PartialRows& partial) {
  const int group = part.Group(job);
  const int width = job.output_width();
  const int64_t element_bytes = SizeOf(job.out_type);
  const int64_t head_stride = job.out_head_stride > 0 ? job.out_head_stride : width;
  const bool is_dense = head_stride == width;
  for (int done = 0; done < n_rows;) {
    const int token = (row_begin + done) / group, idx = (row_begin + done) % group;
    const int head = part.FirstHead(job) + idx;
    const int n = is_dense ? std::min(group - idx, n_rows - done) : 1;
    std::byte* out =
        own.At(job.out) + (token * job.out_stride + head * head_stride) * element_bytes;
    FinishRows({partial.o + int64_t{done} * width, partial.row_max + done, partial.row_sum + done},
               n, width, job.out_type, out);
    if (!is_dense) {
      std::memset(out + width * element_bytes, 0, (head_stride - width) * element_bytes);
    }
    done += n;
  }
}

}  // namespace kvlathe
