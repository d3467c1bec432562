// Products of a few rows with AVX-512 BF16 dots, bound by reading the weights.
//
// One line of weights is 16 outputs x 2 inputs; a dot adds both products to 16 F32 sums against a
// broadcast pair of x. A tile is kRows rows x 64 outputs = 4 kRows accumulators: enough independent
// sums to hide the dot's latency of 6 cycles, and one load of weights per kRows dots. More rows
// than a tile has take further tiles over the same kPairChunk pairs while these lie in L1, with
// sums kept in memory between chunks. Every tile fetches its share of the next chunk, so that
// memory works during all of them.
#include <immintrin.h>

#include "cpu/kernels/linear/linear_part.h"

namespace kvlathe {
namespace {

#define KVL_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kLines = kOutBlock / kLanes;      // lines side by side
constexpr int64_t kPairShorts = 2 * kOutBlock;  // Bf16 from one pair of inputs to the next
constexpr int kMaxTileRows = 6;     // 24 sums, 4 lines of weights and a broadcast in 32 registers
constexpr int64_t kPairChunk = 64;  // 16 KiB of weights: half of L1
// How far a single tile fetches ahead, into L1: far enough that a line arrives from memory in time
// (100 ns x 32 GB/s = 3 KiB). Several tiles fetch one chunk ahead, and into L2: an eighth of a line
// per cycle is more than L1 can have under way (24 lines x 100 ns), and prefetchers that follow
// demand loads stop while tiles repeat a chunk (measured at 8 rows: 16 GB/s into L1, 25 into L2).
constexpr int64_t kFetchAheadShorts = 2048;
constexpr int64_t kLineShorts = 2 * kLanes;
constexpr int64_t kRowPanel = 64;  // their sums are 16 KiB

KVL_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

KVL_INLINE __m512bh LoadLine(const uint16_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

KVL_INLINE __m512bh BroadcastPair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

struct Tile {
  const uint16_t* x;
  int64_t x_stride;
  float* sums;            // [kRows][64]
  const uint16_t* fetch;  // kFetchLines lines of it are fetched per pair
};

// Adds n_pairs pairs of inputs to the sums of kRows rows; `first` starts them at zero.
template <int kRows, int kFetchLines>
KVL_INLINE void AddTile(const Tile& tile, const uint16_t* w, int64_t n_pairs, bool first) {
  __m512 sums[kRows][kLines];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kLines; ++j) {
      sums[r][j] =
          first ? _mm512_setzero_ps() : _mm512_loadu_ps(tile.sums + r * kOutBlock + j * kLanes);
    }
  }
  const uint16_t* fetch = tile.fetch;
  for (int64_t pair = 0; pair < n_pairs; ++pair, w += kPairShorts) {
    __m512bh lines[kLines];
#pragma GCC unroll 4
    for (int j = 0; j < kLines; ++j) {
      if (j < kFetchLines) {
        _mm_prefetch(reinterpret_cast<const char*>(fetch + j * kLineShorts),
                     kFetchLines == kLines ? _MM_HINT_T0 : _MM_HINT_T1);
      }
      lines[j] = LoadLine(w + j * kLineShorts);
    }
    fetch += kFetchLines * kLineShorts;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x = BroadcastPair(tile.x + r * tile.x_stride + 2 * pair);
#pragma GCC unroll 4
      for (int j = 0; j < kLines; ++j) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], x, lines[j]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kLines; ++j) {
      _mm512_storeu_ps(tile.sums + r * kOutBlock + j * kLanes, sums[r][j]);
    }
  }
}

template <int kFetchLines>
void AddRows(int64_t n_rows, const Tile& tile, const uint16_t* w, int64_t n_pairs, bool first) {
  switch (n_rows) {
    case 1:
      return AddTile<1, kFetchLines>(tile, w, n_pairs, first);
    case 2:
      return AddTile<2, kFetchLines>(tile, w, n_pairs, first);
    case 3:
      return AddTile<3, kFetchLines>(tile, w, n_pairs, first);
    case 4:
      return AddTile<4, kFetchLines>(tile, w, n_pairs, first);
    case 5:
      return AddTile<5, kFetchLines>(tile, w, n_pairs, first);
    default:
      return AddTile<6, kFetchLines>(tile, w, n_pairs, first);
  }
}

// The last input when n_in is odd: its pair has a zero that x does not.
void AddLastInput(const LinearPart& part, int64_t first_row, int64_t n_rows, const uint16_t* w,
                  float* sums) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const uint16_t* x = static_cast<const uint16_t*>(part.x) + (first_row + r) * part.x_stride;
    const uint16_t pair[2] = {x[part.n_in - 1], 0};
    AddTile<1, 0>({.x = pair, .x_stride = 0, .sums = sums + r * kOutBlock, .fetch = w}, w, 1,
                  false);
  }
}

// Sums [n_rows, 64] of one block of outputs.
void AddBlock(const LinearPart& part, int64_t first_row, int64_t n_rows, const uint16_t* w,
              float* sums) {
  const int64_t n_pairs = part.n_in / 2;
  const uint16_t* x = static_cast<const uint16_t*>(part.x) + first_row * part.x_stride;
  // Tiles of nearly equal height: 8 rows are 4 + 4, not 6 + 2.
  const int64_t n_tiles = (n_rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t chunk = n_tiles == 1 ? n_pairs : kPairChunk;
  // Lines that a tile fetches per pair: all tiles together, or the first four, fetch what a pair
  // has.
  const int64_t fetch_lines = n_tiles == 1 ? kLines : n_tiles < kLines ? kLines / 2 : 1;
  const int64_t fetch_ahead = n_tiles == 1 ? kFetchAheadShorts : kPairChunk * kPairShorts;
  int64_t pair = 0;
  do {  // once even for n_in = 1, to clear the sums
    const int64_t n = Min(chunk, n_pairs - pair);
    for (int64_t t = 0; t < n_tiles; ++t) {
      const int64_t begin = n_rows * t / n_tiles, end = n_rows * (t + 1) / n_tiles;
      const uint16_t* lines = w + pair * kPairShorts;
      const Tile tile = {.x = x + begin * part.x_stride + 2 * pair,
                         .x_stride = part.x_stride,
                         .sums = sums + begin * kOutBlock,
                         .fetch = lines + fetch_ahead + t * n * fetch_lines * kLineShorts};
      const bool is_first = pair == 0;
      if (t * fetch_lines >= kLines) {
        AddRows<0>(end - begin, tile, lines, n, is_first);
      } else if (fetch_lines == kLines) {
        AddRows<kLines>(end - begin, tile, lines, n, is_first);
      } else if (fetch_lines == 1) {
        AddRows<1>(end - begin, tile, lines, n, is_first);
      } else {
        AddRows<kLines / 2>(end - begin, tile, lines, n, is_first);
      }
    }
    pair += n;
  } while (pair < n_pairs);
  if (part.n_in % 2 != 0) AddLastInput(part, first_row, n_rows, w + n_pairs * kPairShorts, sums);
}

// 16 values of a row; lanes outside `mask` are neither read nor written.
KVL_INLINE void StoreLine(__m512 value, __mmask16 mask, void* y, int64_t offset, DType y_type,
                          bool accumulate) {
  if (y_type == DType::kBf16) {
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(y) + offset, mask, rounded);
    return;
  }
  float* to = static_cast<float*>(y) + offset;
  if (accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
  _mm512_mask_storeu_ps(to, mask, value);
}

KVL_INLINE __mmask16 MaskOf(int64_t n) {
  return n >= kLanes ? 0xffff : static_cast<__mmask16>((1u << n) - 1);
}

void StoreBlock(const LinearPart& part, int64_t first_row, int64_t n_rows, int64_t first_out,
                const float* sums) {
  const int64_t n_out = Min(kOutBlock, part.n_out - first_out);
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t j = 0; j < n_out; j += kLanes) {
      const __mmask16 mask = MaskOf(n_out - j);
      __m512 value = _mm512_loadu_ps(sums + r * kOutBlock + j);
      if (part.bias != nullptr) {
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, part.bias + first_out + j));
      }
      StoreLine(value, mask, part.y, (first_row + r) * part.y_stride + first_out + j, part.y_type,
                part.accumulate);
    }
  }
}

}  // namespace

void MultiplyBf16Avx512(const LinearPart& part) {
  alignas(64) float sums[kRowPanel * kOutBlock];
  for (int64_t row = 0; row < part.n_rows; row += kRowPanel) {
    const int64_t n_rows = Min(kRowPanel, part.n_rows - row);
    const uint16_t* w = static_cast<const uint16_t*>(part.w);
    for (int64_t out = 0; out < part.n_out; out += kOutBlock, w += kOutBlock * part.w_stride) {
      AddBlock(part, row, n_rows, w, sums);
      StoreBlock(part, row, n_rows, out, sums);
    }
  }
}

}  // namespace kvlathe
