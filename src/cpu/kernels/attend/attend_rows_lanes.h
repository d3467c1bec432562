// Attention over the uncompressed rows of a sink, over vectors of lanes.h.
#pragma once

#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// The dot of two rows of any length.
template <typename Row>
KVL_INLINE float Dot(const Row* a, const Row* b, int n) {
  using L = Lines<Row>;
  Vec sum = Zero();
  int d = 0;
  for (; d + kLanes <= n; d += kLanes) sum = Fma(L::Row(a + d), L::Row(b + d), sum);
  float rest = 0;
  for (; d < n; ++d) rest += L::Value(a[d]) * L::Value(b[d]);
  return SumOfLanes(sum) + rest;
}

// o = shrink * o + sum of probs[t] * v[t].
template <typename Row>
KVL_INLINE void AddRows(const float* probs, int n, float shrink, const Row* v, int rank_v,
                        float* o) {
  for (int r = 0; r < rank_v; r += kLanes) {
    Vec sum = Load(o + r) * Set1(shrink);
    for (int t = 0; t < n; ++t) {
      sum = Fma(Set1(probs[t]), Lines<Row>::Row(v + int64_t{t} * rank_v + r), sum);
    }
    Store(o + r, sum);
  }
}

// Attends to the uncompressed rows of a sink, kLanes entries at a time.
template <typename Row>
void AttendRows(const AttendRowsParams& p) {
  const Row* k = static_cast<const Row*>(p.k);
  const Row* v = static_cast<const Row*>(p.v);
  const float log2_scale = p.sm_scale * kLog2E;
  for (int row = 0; row < p.n_rows; ++row) {
    const Row* q = static_cast<const Row*>(p.q) + row * p.q_stride;
    float* o = p.o + row * p.o_stride;
    ClearRow(o, p.rank_v);
    float row_max = kMinusInfinity, row_sum = 0;
    const int end = p.first_visible + row / p.gqa_group;
    const int n_visible = Min(p.n_entries, end);
    for (int begin = Max(0, end - p.window); begin < n_visible; begin += kLanes) {
      const int n = Min(kLanes, n_visible - begin);
      alignas(64) float scores[kLanes];
      Store(scores, Set1(kMinusInfinity));
      for (int t = 0; t < n; ++t) {
        scores[t] = Dot(q, k + int64_t{begin + t} * p.head_dim, p.head_dim);
      }
      if (p.score_cap > 0) {
        Store(scores, CapScores(CapOfRow(p, row), Load(scores)));
        for (int t = n; t < kLanes; ++t) scores[t] = kMinusInfinity;
      }
      const float raised = MaxOfLanes(Larger(Load(scores), Set1(row_max)));
      const float shrink = Exp2((row_max - raised) * log2_scale);
      row_max = raised;
      const Vec probs = Exp2((Load(scores) - Set1(raised)) * Set1(log2_scale));
      row_sum = row_sum * shrink + SumOfLanes(probs);
      Store(scores, probs);
      AddRows(scores, n, shrink, v + int64_t{begin} * p.rank_v, p.rank_v, o);
    }
    p.row_max[row] = row_max * p.sm_scale;
    p.row_sum[row] = row_sum;
  }
}

}  // namespace
}  // namespace kvlathe
