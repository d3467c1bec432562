// What the AVX-512 and AMX kernels share: exponentials and the online softmax of one row. Only
// files compiled with AVX-512 flags may include this. Every function has internal linkage, so that
// no such code is ever linked into a portable path.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/attend/attend_range.h"

namespace kvlathe {
namespace {

constexpr int kLanes = 16;  // tokens of a K line, dimensions of a V line

KVL_INLINE __m512bh LoadLine(const void* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}
KVL_INLINE __m512bh BroadcastPair(const void* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// Returns 2^x for x <= 0, exactly 1 at 0 and 0 at -infinity, with a relative error of 1e-7. A
// minimax polynomial of degree 5 (Remez, with the values at both ends fixed) covers the fraction in
// [0, 1), and vscalefps takes the exponent as floor(x).
KVL_INLINE __m512 Exp2(__m512 x) {
  constexpr int kFloorWithoutExceptions = 0x09;
  const __m512 f = _mm512_reduce_ps(x, kFloorWithoutExceptions);
  __m512 y = _mm512_set1_ps(1.8793186e-3f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(8.9909951e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5818676e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4015927e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9315174e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, x);
}
KVL_INLINE float Exp2(float x) { return _mm512_cvtss_f32(Exp2(_mm512_set1_ps(x))); }

// tanh as lanes.h has it.
KVL_INLINE __m512 Tanh(__m512 x) {
  constexpr int kFloorWithoutExceptions = 0x09;
  constexpr float kMost = 10;  // tanh of which is 1
  const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __m512 u = _mm512_min_ps(_mm512_set1_ps(kMost * 2 * kLog2E),
                                 _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(2 * kLog2E)));
  const __m512 f = _mm512_reduce_ps(u, kFloorWithoutExceptions);
  __m512 y = _mm512_set1_ps(1.8793186e-3f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(8.9909951e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5818676e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4015927e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9315174e-1f));
  const __m512 power = _mm512_scalef_ps(one, u);
  const __m512 e = _mm512_fmadd_ps(power, _mm512_mul_ps(y, f), _mm512_sub_ps(power, one));
  return _mm512_or_ps(_mm512_div_ps(e, _mm512_add_ps(e, _mm512_set1_ps(2.0f))), sign);
}

// Caps scores of a row.
template <int kLines>
KVL_INLINE void CapScores(const RowCap& cap, __m512 (&scores)[kLines]) {
  const __m512 unit = _mm512_set1_ps(cap.unit), shift = _mm512_set1_ps(cap.shift);
  // A loop would have the scores in memory, with and without a cap.
  Unroll<kLines>([&](auto j) KVL_PART {
    const __m512 capped = Tanh(_mm512_fmadd_ps(scores[j.value], unit, shift));
    scores[j.value] = _mm512_mul_ps(_mm512_set1_ps(cap.most), capped);
  });
}

// Raises the row's maximum to the largest lane of `top`, and its 16 partial sums with it. Most
// steps do not raise it, and one comparison finds that out without a horizontal step.
KVL_INLINE void RaiseRowMax(__m512 top, float log2_scale, RowState* row, float* sums) {
  row->shrink = 1;
  if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(row->max), _CMP_GT_OQ) == 0) return;
  const float raised = _mm512_reduce_max_ps(top);
  row->shrink = Exp2((row->max - raised) * log2_scale);
  row->max = raised;
  _mm512_storeu_ps(sums, _mm512_mul_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(row->shrink)));
}

template <int kLines>
KVL_INLINE __m512 MaxOfLines(const __m512 (&scores)[kLines]) {
  __m512 top = scores[0];
  Unroll<kLines>([&](auto j) { top = _mm512_max_ps(top, scores[j.value]); });
  return top;
}

// Turns kLines * 16 scores into Bf16 probabilities against the row's maximum and adds them to its
// partial sums. Sums take the rounded probabilities: the weights that o sees then add up to exactly
// 1, so rounding leaves alone what values have in common (their mean), and one dot per two lines
// against ones does it.
template <int kLines>
KVL_INLINE void AddProbabilities(const __m512 (&scores)[kLines], float log2_scale,
                                 const RowState& row, float* sums, uint16_t* probs) {
  static_assert(kLines % 2 == 0);
  const __m512 scale = _mm512_set1_ps(log2_scale);
  // A row that saw nothing yet (all of these scores are -infinity too) has no maximum to subtract.
  const float max = row.max == kMinusInfinity ? 0 : row.max;
  const __m512 offset = _mm512_set1_ps(-max * log2_scale);
  const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  __m512 sum = _mm512_loadu_ps(sums);
  Unroll<kLines / 2>([&](auto j) {
    const __m512 low = Exp2(_mm512_fmadd_ps(scores[2 * j.value], scale, offset));
    const __m512 high = Exp2(_mm512_fmadd_ps(scores[2 * j.value + 1], scale, offset));
    const __m512bh pair = _mm512_cvtne2ps_pbh(high, low);
    sum = _mm512_dpbf16_ps(sum, pair, ones);
    _mm512_storeu_si512(probs + 32 * j.value, reinterpret_cast<__m512i>(pair));
  });
  _mm512_storeu_ps(sums, sum);
}

// Sets the scores of tokens from `n_visible` on to -infinity. Lines hold 16 tokens each.
template <int kLines>
KVL_INLINE void MaskScores(int n_visible, __m512 (&scores)[kLines]) {
  Unroll<kLines>([&](auto j) {
    const int n = Max(0, Min(kLanes, n_visible - kLanes * j.value));
    scores[j.value] = _mm512_mask_mov_ps(_mm512_set1_ps(kMinusInfinity),
                                         static_cast<__mmask16>((1u << n) - 1), scores[j.value]);
  });
}

// Does the same for the tokens before `n_hidden`.
template <int kLines>
KVL_INLINE void MaskFirstScores(int n_hidden, __m512 (&scores)[kLines]) {
  Unroll<kLines>([&](auto j) {
    const int n = Max(0, Min(kLanes, n_hidden - kLanes * j.value));
    scores[j.value] = _mm512_mask_mov_ps(scores[j.value], static_cast<__mmask16>((1u << n) - 1),
                                         _mm512_set1_ps(kMinusInfinity));
  });
}

KVL_INLINE void ClearRow(float* o, int rank_v) {
  for (int r = 0; r < rank_v; r += kLanes) _mm512_storeu_ps(o + r, _mm512_setzero_ps());
}

// The state of a row where the call begins, with its partial sums; o is cleared if the call does
// not continue.
KVL_INLINE RowState BeginRowState(const AttendParams& p, int row, float* sums) {
  if (!p.continues) {
    ClearRow(p.o + row * p.o_stride, p.shape.rank_v);
    _mm512_storeu_ps(sums, _mm512_setzero_ps());
    return {kMinusInfinity, 1};
  }
  _mm512_storeu_ps(sums, _mm512_maskz_mov_ps(1, _mm512_set1_ps(p.row_sum[row])));
  return {p.row_max[row] / p.sm_scale, 1};
}

// Writes the empty partial result of the rows whose entries all come after the range, which are the
// first rows, and returns their number.
KVL_INLINE int ClearRowsThatSeeNothing(const AttendParams& p) {
  int row = 0;
  for (; row < p.n_rows && LimitOfRow(p, row) <= p.kv_begin; ++row) {
    if (p.continues) continue;
    ClearRow(p.o + row * p.o_stride, p.shape.rank_v);
    p.row_max[row] = kMinusInfinity;
    p.row_sum[row] = 0;
  }
  return row;
}

}  // namespace
}  // namespace kvlathe
