#include "kernels/cpu/attend_avx512.h"
#include "kernels/cpu/entry_scores_isa.h"

namespace kvlathe {
namespace {

// ln x for normal x > 0, relative error 2e-7 near 1 as well: x = m 2^e with m in [0.75, 1.5) and
// ln m = 2 atanh((m - 1) / (m + 1)) by its series.
KVL_INLINE __m512 Log(__m512 x) {
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  const __m512 e = _mm512_sub_ps(_mm512_getexp_ps(x), _mm512_getexp_ps(m));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 s = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
  const __m512 s2 = _mm512_mul_ps(s, s);
  __m512 y = _mm512_set1_ps(2.0f / 9);
  y = _mm512_fmadd_ps(y, s2, _mm512_set1_ps(2.0f / 7));
  y = _mm512_fmadd_ps(y, s2, _mm512_set1_ps(2.0f / 5));
  y = _mm512_fmadd_ps(y, s2, _mm512_set1_ps(2.0f / 3));
  y = _mm512_fmadd_ps(y, s2, _mm512_set1_ps(2.0f));
  return _mm512_fmadd_ps(e, _mm512_set1_ps(0.693147181f), _mm512_mul_ps(y, s));
}

KVL_INLINE __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>((1u << Min(kLanes, n)) - 1);
}

// -ln(-ln u) for 16 key positions (entry_scores.h).
KVL_INLINE __m512 Gumbel(uint32_t query_key, __m512i positions) {
  const auto mix = [](__m512i x, int shift, uint32_t factor) __attribute__((always_inline)) {
    const __m512i mixed = _mm512_xor_si512(x, _mm512_srl_epi32(x, _mm_cvtsi32_si128(shift)));
    return _mm512_mullo_epi32(mixed, _mm512_set1_epi32(static_cast<int>(factor)));
  };
  __m512i x = _mm512_mullo_epi32(positions, _mm512_set1_epi32(static_cast<int>(0x9e3779b1u)));
  x = _mm512_add_epi32(x, _mm512_set1_epi32(static_cast<int>(query_key)));
  x = mix(mix(x, 16, 0x7feb352du), 15, 0x846ca68bu);
  x = _mm512_srli_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), 9);
  const __m512 odd =
      _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_set1_epi32(1)));
  const __m512 u = _mm512_mul_ps(odd, _mm512_set1_ps(0x1p-24f));
  const __m512 zero = _mm512_setzero_ps();
  return _mm512_sub_ps(zero, Log(_mm512_sub_ps(zero, Log(u))));
}

// What turns a score of a row into its probability: 2^(score * scale + offset) * weight.
struct RowWeight {
  float scale, offset, weight;
};

// Overwrites the row with noisy scores, in units of the binary logarithm.
RowWeight AddNoise(const EntryScoreParams& p, int row, int n_visible) {
  const int token = row / p.gqa_group, head = row % p.gqa_group;
  const uint32_t key =
      QueryKey(*p.noise, p.noise->first_head + head, p.noise->first_position + token);
  const __m512 inverse = _mm512_set1_ps(kLog2E / TemperatureOfToken(*p.noise, token));
  const __m512 scale = _mm512_set1_ps(p.sm_scale);
  float* scores = p.scores + row * p.stride;
  __m512 top = _mm512_set1_ps(kMinusInfinity);
  for (int e = 0; e < n_visible; e += kLanes) {
    const __mmask16 lanes = FirstLanes(n_visible - e);
    const __m512i positions =
        _mm512_loadu_si512(p.table.positions(e / kBlockSize) + e % kBlockSize);
    const __m512 noisy = _mm512_mul_ps(
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, scores + e), scale, Gumbel(key, positions)),
        inverse);
    _mm512_mask_storeu_ps(scores + e, lanes, noisy);
    top = _mm512_mask_max_ps(top, lanes, top, noisy);
  }
  const float max = _mm512_reduce_max_ps(top);
  const __m512 offset = _mm512_set1_ps(-max);
  __m512 sum = _mm512_setzero_ps();
  for (int e = 0; e < n_visible; e += kLanes) {
    const __mmask16 lanes = FirstLanes(n_visible - e);
    const __m512 x = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, scores + e), offset);
    sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(lanes, Exp2(x)));
  }
  return {1, -max, 1 / _mm512_reduce_add_ps(sum)};
}

constexpr int kRowsTogether = 64;

// Rows that the sums of one line are gathered from before they go to memory.
void AddRows(const EntryScoreParams& p, int first_row, int n_rows) {
  RowWeight weights[kRowsTogether];
  int visible[kRowsTogether];
  int first_seeing = n_rows;  // rows see ever more
  for (int i = n_rows; i-- > 0;) {
    const int row = first_row + i;
    visible[i] = VisibleToRow(p, row);
    if (visible[i] == 0) break;
    first_seeing = i;
    if (p.noise != nullptr) {
      weights[i] = AddNoise(p, row, visible[i]);
    } else {
      weights[i] = {p.sm_scale * kLog2E, -p.row_max[row] * kLog2E, 1 / p.row_sum[row]};
    }
  }
  const int end = n_rows == 0 ? 0 : visible[n_rows - 1];
  for (int e = 0; e < end; e += kLanes) {
    while (visible[first_seeing] <= e) ++first_seeing;
    __m512i low = _mm512_setzero_si512(), high = low;
    for (int i = first_seeing; i < n_rows; ++i) {
      const __mmask16 lanes = FirstLanes(visible[i] - e);
      const __m512 x =
          _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, p.scores + (first_row + i) * p.stride + e),
                          _mm512_set1_ps(weights[i].scale), _mm512_set1_ps(weights[i].offset));
      constexpr float kUnits = static_cast<float>(1 / kScoreUnit);
      const __m512 units =
          _mm512_maskz_mul_ps(lanes, Exp2(x), _mm512_set1_ps(weights[i].weight * kUnits));
      low = _mm512_add_epi64(low, _mm512_cvttps_epi64(_mm512_castps512_ps256(units)));
      high = _mm512_add_epi64(high, _mm512_cvttps_epi64(_mm512_extractf32x8_ps(units, 1)));
    }
    alignas(64) int64_t line[kLanes];
    _mm512_store_si512(line, low);
    _mm512_store_si512(line + kLanes / 2, high);
    int64_t* sums = p.table.sums(e / kBlockSize) + e % kBlockSize;
    for (int i = 0; i < kLanes; ++i) AddToSum(line[i], sums + i);
  }
}

void Add(const EntryScoreParams& p) {
  for (int row = 0; row < p.n_rows; row += kRowsTogether) {
    AddRows(p, row, Min(kRowsTogether, p.n_rows - row));
  }
}

}  // namespace

const EntryScoreKernels kEntryScoreAvx512 = {Add};

}  // namespace kvlathe
