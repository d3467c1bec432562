#include <cmath>

#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "cpu/kernels/attend/entry_scores_isa.h"

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
  return static_cast<__mmask16>((1u << Max(0, Min(kLanes, n))) - 1);
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

// What turns a score of a row into units of its probability: 2^(score * scale + offset).
struct RowWeight {
  float scale, offset;
};

// Of a row whose probabilities are 2^(score * scale - max) / sum.
RowWeight WeightOf(float scale, float max, float sum) {
  return {scale, -max - std::log2(sum * static_cast<float>(kScoreUnit))};
}

// Overwrites the row with noisy scores, in units of the binary logarithm.
RowWeight AddNoise(const EntryScoreParams& p, int row, int n_visible) {
  const int token = row / p.gqa_group, head = row % p.gqa_group;
  const uint32_t key =
      QueryKey(*p.noise, p.noise->first_head + head, p.noise->first_position + token);
  const __m512 inverse = _mm512_set1_ps(kLog2E / p.noise->TemperatureOf(token));
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
  return WeightOf(1, max, _mm512_reduce_add_ps(sum));
}

constexpr int kRowsTogether = 64;
constexpr int kBlockLines = kBlockSize / kLanes;
// A probability is at most 1, also where a row has NaN, so that the units of this many fit 32 bits.
constexpr float kMaxUnits = static_cast<float>(1 / kScoreUnit);
constexpr int kRowsIn32Bits = 3;
static_assert(kRowsIn32Bits * (1 / kScoreUnit) < 0x1p32);

// Rows [first, first + n) of the scores, whose units are added up before they go to memory. They
// see ever more; those before first_seeing see nothing of the block at work.
struct Rows {
  RowWeight weights[kRowsTogether];
  int visible[kRowsTogether];
  int first, first_seeing, n;
};

// f(sums, lanes, units) for each line of the 64 entries from `entry` on, of the rows
// [begin, end): its sums, the entries that the row sees, and their units.
template <bool kIsMasked, typename F>
KVL_INLINE void ForUnits(const EntryScoreParams& p, const Rows& rows, int begin, int end, int entry,
                         __m512i (&sums)[kBlockLines], const F& f) {
  const __m512 most = _mm512_set1_ps(kMaxUnits);
  for (int i = begin; i < end; ++i) {
    const float* row = p.scores + (rows.first + i) * p.stride + entry;
    const __m512 scale = _mm512_set1_ps(rows.weights[i].scale);
    const __m512 offset = _mm512_set1_ps(rows.weights[i].offset);
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      const __m512 x = _mm512_fmadd_ps(_mm512_loadu_ps(row + kLanes * j.value), scale, offset);
      // Of NaN, min takes its second operand.
      const __m512i units = _mm512_cvtps_epu32(_mm512_min_ps(Exp2(x), most));
      const __mmask16 lanes =
          kIsMasked ? FirstLanes(rows.visible[i] - entry - kLanes * j.value) : __mmask16(~0);
      sums[j.value] = f(sums[j.value], lanes, units);
    });
  }
}

// Adds the units of these entries of kRowsIn32Bits rows from `begin` on.
template <bool kIsMasked>
KVL_INLINE void AddUnits(const EntryScoreParams& p, const Rows& rows, int begin, int entry,
                         __m512i (&sums)[kBlockLines]) {
  ForUnits<kIsMasked>(p, rows, begin, Min(rows.n, begin + kRowsIn32Bits), entry, sums,
                      [](__m512i sum, __mmask16 lanes, __m512i units)
                          KVL_PART { return _mm512_mask_add_epi32(sum, lanes, sum, units); });
}

// Raises to the units of these entries of all rows from `begin` up to `end` that are larger.
template <bool kIsMasked>
KVL_INLINE void RaiseToUnits(const EntryScoreParams& p, const Rows& rows, int begin, int end,
                             int entry, __m512i (&largest)[kBlockLines]) {
  ForUnits<kIsMasked>(p, rows, begin, end, entry, largest,
                      [](__m512i most, __mmask16 lanes, __m512i units)
                          KVL_PART { return _mm512_mask_max_epu32(most, lanes, most, units); });
}

// The largest of rows for the 64 entries from `entry` on.
void RaiseBlock(const EntryScoreParams& p, const Rows& rows, int entry) {
  __m512i largest[kBlockLines];
  Unroll<kBlockLines>([&](auto j) KVL_PART { largest[j.value] = _mm512_setzero_si512(); });
  int first_whole = rows.first_seeing;
  while (first_whole < rows.n && rows.visible[first_whole] < entry + kBlockSize) ++first_whole;
  RaiseToUnits<true>(p, rows, rows.first_seeing, first_whole, entry, largest);
  RaiseToUnits<false>(p, rows, first_whole, rows.n, entry, largest);
  int64_t* to = p.table.sums(entry / kBlockSize);
  const SumsLock lock(to);
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    int64_t* line = to + kLanes * j.value;
    const auto raise = [&](int64_t* at, __m256i units) KVL_PART {
      const __m512i wide = _mm512_cvtepu32_epi64(units);
      _mm512_storeu_si512(at, _mm512_max_epi64(_mm512_loadu_si512(at), wide));
    };
    raise(line, _mm512_castsi512_si256(largest[j.value]));
    raise(line + kLanes / 2, _mm512_extracti64x4_epi64(largest[j.value], 1));
  });
}

// The sums of rows for the 64 entries from `entry` on.
void AddBlock(const EntryScoreParams& p, const Rows& rows, int entry) {
  __m512i even[kBlockLines], odd[kBlockLines];  // 64 bits wide
  Unroll<kBlockLines>([&](auto j)
                          KVL_PART { even[j.value] = odd[j.value] = _mm512_setzero_si512(); });
  for (int i = rows.first_seeing; i < rows.n; i += kRowsIn32Bits) {
    __m512i sums[kBlockLines];
    Unroll<kBlockLines>([&](auto j) KVL_PART { sums[j.value] = _mm512_setzero_si512(); });
    if (rows.visible[i] < entry + kBlockSize) {
      AddUnits<true>(p, rows, i, entry, sums);
    } else {
      AddUnits<false>(p, rows, i, entry, sums);
    }
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      const __m512i low = _mm512_set1_epi64(0xffffffff);
      even[j.value] = _mm512_add_epi64(even[j.value], _mm512_and_si512(sums[j.value], low));
      odd[j.value] = _mm512_add_epi64(odd[j.value], _mm512_srli_epi64(sums[j.value], 32));
    });
  }
  const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const __m512i second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  int64_t* to = p.table.sums(entry / kBlockSize);
  const SumsLock lock(to);
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    int64_t* line = to + kLanes * j.value;
    const auto add = [&](int64_t* at, __m512i index) KVL_PART {
      const __m512i units = _mm512_permutex2var_epi64(even[j.value], index, odd[j.value]);
      _mm512_storeu_si512(at, _mm512_add_epi64(_mm512_loadu_si512(at), units));
    };
    add(line, first);
    add(line + kLanes / 2, second);
  });
}

void AddRows(const EntryScoreParams& p, int first_row, int n_rows) {
  Rows rows;
  rows.first = first_row;
  rows.n = rows.first_seeing = n_rows;
  for (int i = n_rows; i-- > 0;) {
    const int row = first_row + i;
    rows.visible[i] = VisibleToRow(p, row);
    if (rows.visible[i] == 0) break;
    rows.first_seeing = i;
    rows.weights[i] = p.noise != nullptr
                          ? AddNoise(p, row, rows.visible[i])
                          : WeightOf(p.sm_scale * kLog2E, p.row_max[row] * kLog2E, p.row_sum[row]);
  }
  const int end = rows.first_seeing == n_rows ? 0 : rows.visible[n_rows - 1];
  for (int entry = 0; entry < end; entry += kBlockSize) {
    while (rows.visible[rows.first_seeing] <= entry) ++rows.first_seeing;
    if (p.takes_largest) {
      RaiseBlock(p, rows, entry);
    } else {
      AddBlock(p, rows, entry);
    }
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
