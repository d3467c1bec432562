// Attention over the few uncompressed rows of a sink. Scores by dots along head_dim; probabilities
// and values in F32, 16 entries at a time.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/avx512/attend_avx512.h"

namespace kvlathe {
namespace {

// The dot of two Bf16 rows of any length.
KVL_INLINE float Dot(const uint16_t* a, const uint16_t* b, int n) {
  __m512 sum = _mm512_setzero_ps();
  for (int d = 0; d < n; d += 32) {
    const __mmask32 mask = n - d >= 32 ? ~__mmask32{0} : (__mmask32{1} << (n - d)) - 1;
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, a + d)),
                           reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, b + d)));
  }
  return _mm512_reduce_add_ps(sum);
}

KVL_INLINE __m512 LoadBf16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// o = shrink * o + sum of probs[t] * v[t].
KVL_INLINE void AddValues(const float* probs, int n, float shrink, const uint16_t* v, int rank_v,
                          float* o) {
  for (int r = 0; r < rank_v; r += kLanes) {
    __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(o + r), _mm512_set1_ps(shrink));
    for (int t = 0; t < n; ++t) {
      sum = _mm512_fmadd_ps(_mm512_set1_ps(probs[t]), LoadBf16(v + int64_t{t} * rank_v + r), sum);
    }
    _mm512_storeu_ps(o + r, sum);
  }
}

}  // namespace

void AttendRowsAvx512(const AttendRowsParams& p) {
  const uint16_t* k = static_cast<const uint16_t*>(p.k);
  const uint16_t* v = static_cast<const uint16_t*>(p.v);
  const float log2_scale = p.sm_scale * kLog2E;
  for (int row = 0; row < p.n_rows; ++row) {
    const uint16_t* q = static_cast<const uint16_t*>(p.q) + row * p.q_stride;
    float* o = p.o + row * p.o_stride;
    ClearRow(o, p.rank_v);
    float row_max = kMinusInfinity, row_sum = 0;
    const int end = p.first_visible + row / p.gqa_group;
    const int n_visible = Min(p.n_entries, end);
    for (int begin = Max(0, end - p.window); begin < n_visible; begin += kLanes) {
      const int n = Min(kLanes, n_visible - begin);
      alignas(64) float scores[kLanes];
      _mm512_store_ps(scores, _mm512_set1_ps(kMinusInfinity));
      for (int t = 0; t < n; ++t) {
        scores[t] = Dot(q, k + int64_t{begin + t} * p.head_dim, p.head_dim);
      }
      __m512 probs = _mm512_load_ps(scores);
      if (p.score_cap > 0) {
        __m512 lines[1] = {probs};
        CapScores(CapOfRow(p, row), lines);
        MaskScores(n, lines);
        probs = lines[0];
      }
      const float raised = _mm512_reduce_max_ps(_mm512_max_ps(probs, _mm512_set1_ps(row_max)));
      const float shrink = Exp2((row_max - raised) * log2_scale);
      row_max = raised;
      probs = Exp2(
          _mm512_mul_ps(_mm512_sub_ps(probs, _mm512_set1_ps(raised)), _mm512_set1_ps(log2_scale)));
      row_sum = row_sum * shrink + _mm512_reduce_add_ps(probs);
      _mm512_store_ps(scores, probs);
      AddValues(scores, n, shrink, v + int64_t{begin} * p.rank_v, p.rank_v, o);
    }
    p.row_max[row] = row_max * p.sm_scale;
    p.row_sum[row] = row_sum;
  }
}

}  // namespace kvlathe
