// Tiles of 4 rows x 64 sums, as those of attention (attend/avx512/attend_avx512.cc). Of keys a row
// is a channel of the map and a line 16 tokens; of values a row is a token and a line 16 channels.
// Either way both operands have a pair of inputs beside each other, as a dot wants them.
#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "cpu/kernels/latent/rebuild_rows.h"

namespace kvlathe {
namespace {

constexpr int kRows = 4;
constexpr int kMostLines = 4;
constexpr int kOuts = 64;              // of a group of a packed matrix
constexpr int kPairWords = 2 * kOuts;  // a pair of inputs of these, or of a block's tokens
constexpr int kLineWords = 2 * kLanes;

template <int kLines>
using Sums = __m512[kRows][kLines];

// sums[i][j] = the sum over pairs of row i's pair times line j. Rows lie row_step words apart, and
// their pairs pair_step.
template <int kLines>
KVL_INLINE void AddPairs(const uint16_t* rows, int64_t row_step, int64_t pair_step,
                         const uint16_t* lines, int n_pairs, Sums<kLines>& sums) {
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kLines>([&](auto j) KVL_PART { sums[i.value][j.value] = _mm512_setzero_ps(); });
  });
  for (int pair = 0; pair < n_pairs; ++pair, rows += pair_step, lines += kPairWords) {
    __m512bh line[kLines];
    Unroll<kLines>([&](auto j)
                       KVL_PART { line[j.value] = LoadLine(lines + kLineWords * j.value); });
    Unroll<kRows>([&](auto i) KVL_PART {
      const __m512bh row = BroadcastPair(rows + i.value * row_step);
      Unroll<kLines>([&](auto j) KVL_PART {
        sums[i.value][j.value] = _mm512_dpbf16_ps(sums[i.value][j.value], line[j.value], row);
      });
    });
  }
}

// Numbers of a and b in turn, in Bf16.
KVL_INLINE __m512i RoundInTurn(__m512 a, __m512 b) {
  const __m512i first = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
  const __m512i second = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(b)));
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

void MapKeys(const PackedMatrix& map, const uint16_t* k, float* keys) {
  const int rank = static_cast<int>(map.n_in()), n_dims = static_cast<int>(map.n_out());
  const auto* const w = reinterpret_cast<const uint16_t*>(map.data());
  for (int dim = 0; dim < n_dims; dim += kRows) {
    const uint16_t* const rows = w + int64_t{dim / kOuts} * kOuts * rank + 2 * (dim % kOuts);
    Sums<kMostLines> sums;
    AddPairs<kMostLines>(rows, 2, kPairWords, k, rank / 2, sums);
    Unroll<kRows>([&](auto i) KVL_PART {
      Unroll<kMostLines>([&](auto j) KVL_PART {
        _mm512_store_ps(keys + (dim + i.value) * kBlockSize + kLanes * j.value,
                        sums[i.value][j.value]);
      });
    });
  }
}

void RoundKeys(const float* keys, int n_dims, uint16_t* k) {
  for (int dim = 0; dim < n_dims; dim += 2, keys += 2 * kBlockSize) {
    for (int t = 0; t < kBlockSize; t += kLanes, k += kLineWords) {
      _mm512_store_si512(
          k, RoundInTurn(_mm512_load_ps(keys + t), _mm512_load_ps(keys + kBlockSize + t)));
    }
  }
}

// The rows of kRows tokens of V, whose pairs lie beside each other.
KVL_INLINE void GatherTokens(const uint16_t* v, int rank, uint16_t* rows) {
  for (int pair = 0; pair < kRows / 2; ++pair, v += 2 * rank, rows += 2 * rank) {
    for (int r = 0; r < rank; r += kLanes) {
      const __m512i both = _mm512_loadu_si512(v + 2 * r);
      const auto store = [](uint16_t* to, __m512i words) KVL_PART {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
      };
      store(rows + r, both);
      store(rows + rank + r, _mm512_srli_epi32(both, 16));
    }
  }
}

template <int kLines>
KVL_INLINE void MapTokens(const uint16_t* rows, const uint16_t* w, int rank, int64_t pair_words,
                          uint16_t* to) {
  Sums<kLines> sums;
  AddPairs<kLines>(rows, rank, 2, w, rank / 2, sums);
  Unroll<kRows / 2>([&](auto pair) KVL_PART {
    Unroll<kLines>([&](auto j) KVL_PART {
      _mm512_store_si512(
          to + pair.value * pair_words + kLineWords * j.value,
          RoundInTurn(sums[2 * pair.value][j.value], sums[2 * pair.value + 1][j.value]));
    });
  });
}

void MapValues(const PackedMatrix& map, const uint16_t* v, uint16_t* to) {
  const int rank = static_cast<int>(map.n_in()), n_dims = static_cast<int>(map.n_out());
  const auto* const w = reinterpret_cast<const uint16_t*>(map.data());
  alignas(64) uint16_t rows[kRows * kMaxRowRank];
  for (int t = 0; t < kBlockSize; t += kRows) {
    GatherTokens(v + int64_t{t} * rank, rank, rows);
    for (int dim = 0; dim < n_dims; dim += kOuts) {
      const int n_lines = Min(kMostLines, (n_dims - dim) / kLanes);
      WithCount<kMostLines>(n_lines, [&](auto lines) KVL_PART {
        MapTokens<lines.value>(rows, w + int64_t{dim} * rank, rank, int64_t{2} * n_dims,
                               to + int64_t{t} * n_dims + 2 * dim);
      });
    }
  }
}

}  // namespace

const RebuildKernels kRebuildAvx512 = {MapKeys, RoundKeys, MapValues};

}  // namespace kvlathe
