#include "cpu/attention/turning_mean.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/units.h"
#include "cpu/attention/partial.h"

namespace kvlathe {
namespace {

// Blocks that attention takes in one call. Only within a call a block is fetched while the one
// before it is read, so there are as many as keep the weights of all rows in L2. Where the bits of
// a row must not depend on the rows beside it, neither may the calls, which begin at multiples of
// these blocks.
constexpr int kFewestTogether = 8, kRowBlocksTogether = 1024;

int BlocksTogether(int n_rows, bool is_deterministic) {
  return is_deterministic ? kFewestTogether
                          : std::max(kFewestTogether, kRowBlocksTogether / n_rows);
}

int64_t OwnFloats(int head_dim, int n_rows) {
  return RoundUp(head_dim, 16) + std::max(MeanQueries::MemoryFloats(n_rows, kFewestTogether),
                                          int64_t{n_rows + kRowBlocksTogether} * kMeanWeights);
}

}  // namespace

// The mean m of a pair adds q R(j) m = c cos + s sin at j to a score. With j = p + t that is
// c' cos + s' sin at t, where (s', c') is (s, c) turned by p. Keeps (s, c) of all pairs, turned
// from the first token of a block to its middle.
void MeanQueries::SetRow(int64_t row, int joined_idx, const float* q) {
  const MeanAngles& angles = frames_.mean_angles;
  const float* const mean = frames_.turning_mean + int64_t{joined_idx} * frames_.head_dim;
  const float unit = std::sqrt(frames_.way_back);  // takes the amplitude off
  const int half = frames_.half;
  float* const to = memory_ + row * kMeanWeights;
  for (int i = 0; i < angles.n_pairs; ++i) {
    const float c = unit * (q[i] * mean[i] + q[i + half] * mean[i + half]);
    const float s = unit * (q[i + half] * mean[i] - q[i] * mean[i + half]);
    to[i] = s * angles.middle_cos[i] - c * angles.middle_sin[i];
    to[angles.n_pairs + i] = c * angles.middle_cos[i] + s * angles.middle_sin[i];
  }
}

TurningMean MeanQueries::Of(int position, int n_blocks) const {
  const MeanAngles& mean = frames_.mean_angles;
  if (!HasMean()) return {};
  float* const weights = memory_ + int64_t{n_rows_} * kMeanWeights;
  const int64_t angles = int64_t{position} * frames_.half;
  const float *cos = frames_.cos + angles, *sin = frames_.sin + angles, *from = memory_;
  for (int block = 0; block < n_blocks; ++block) {
    float* const of_block = weights + int64_t{block} * n_rows_ * kMeanWeights;
    for (int64_t row = 0; row < n_rows_; ++row) {
      elementwise_.rope(from + row * kMeanWeights, cos, sin, 2 * mean.n_pairs, 2 * mean.n_pairs,
                        DType::kF32, of_block + row * kMeanWeights);
    }
    // The table's rows lie a page apart from block to block.
    from = of_block;
    cos = mean.step_cos;
    sin = mean.step_sin;
  }
  return {weights, mean.cos, mean.sin, mean.n_pairs};
}

int64_t LessMeanScratchBytes(int head_dim, int n_rows, int64_t max_item_floats) {
  return 4 * (OwnFloats(head_dim, n_rows) + max_item_floats);
}

void AttendLessMean(const FrameKernels& kernels, const FramesOfHead& frames, const AttendParams& p,
                    const FrameScratch& scratch) {
  KVL_DCHECK(p.scores == nullptr);
  const int rank_v = p.shape.rank_v, d = frames.head_dim;
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  const int begin =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (begin >= end) return kernels.attend.attend(p, scratch.kernel);  // which sees nothing
  float* const row_of_q = reinterpret_cast<float*>(scratch.own);
  float* const memory = row_of_q + RoundUp(d, 16);
  const PartialRows more = PartialAt(row_of_q + OwnFloats(d, p.n_rows), p.n_rows, rank_v);
  MeanQueries queries(frames, kernels.elementwise, p.n_rows, memory);
  const int64_t element = SizeOf(p.shape.row_type);
  const int group = p.gqa_group / frames.n_joined;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const int joined_idx = static_cast<int>(row % p.gqa_group) / group;
    const int64_t from = row * frames.q_stride + int64_t{joined_idx} * d;
    ConvertToFloat(p.shape.row_type, frames.q + from * element, d, row_of_q);
    queries.SetRow(row, joined_idx, row_of_q);
  }
  const int step = BlocksTogether(p.n_rows, p.is_deterministic) * kBlockSize;
  for (int entry = begin, next; entry < end; entry = next) {
    next = (entry / step + 1) * step;
    AttendParams part = p;
    part.kv_begin = entry;
    part.kv_end = std::min(p.kv_end, next);
    const int n_blocks = (std::min(end, part.kv_end) - entry + kBlockSize - 1) / kBlockSize;
    part.mean = queries.Of(frames.first_position + entry, n_blocks);
    const bool is_first = entry == begin;
    if (!is_first) {
      part.o = more.o;
      part.o_stride = rank_v;
      part.row_max = more.row_max;
      part.row_sum = more.row_sum;
    }
    kernels.attend.attend(part, scratch.kernel);
    if (!is_first) MergePartial(more, p.n_rows, rank_v, {p.o, p.row_max, p.row_sum}, p.o_stride);
  }
}

}  // namespace kvlathe
