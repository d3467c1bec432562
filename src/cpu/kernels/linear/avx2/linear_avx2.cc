// Products with AVX2 and FMA, in F32: Bf16 operands are widened, which is exact. For any number of
// rows with Bf16 operands where the machine has no BF16 dots, and for few rows (bound by reading
// the weights) or deterministic sums with F32 ones.
//
// Each output is summed in the order of its inputs, whatever the rows and outputs beside it.
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/linear/linear_part.h"

namespace kvlathe {
namespace {

#define KVL_INLINE inline __attribute__((always_inline))

constexpr int kTileRows = 4;
constexpr int kMaxSums = 8;  // of a tile: what hides the latency of their additions

KVL_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// The widest tile of kRows rows, in vectors.
template <int kRows>
constexpr int TileCols() {
  return kRows == 1 ? kMaxSums : kRows == 2 ? kMaxSums / 2 : kMaxSums / 4;
}

// --- Bf16: [n_out / 64][n_in / 2][64][2]. A block of 64 outputs is taken in chunks of pairs that
// stay in L1 while all tiles of rows and outputs pass over them, with sums kept in memory between
// chunks. The tiles share fetching the next chunk, so that memory works during all of them. ---

constexpr int64_t kPairShorts = 2 * kOutBlock;  // Bf16 from one pair of inputs to the next
constexpr int64_t kLineShorts = 32;
constexpr int kLines = kPairShorts / kLineShorts;  // of a pair
constexpr int64_t kPairChunk = 64;                 // 16 KiB of weights: half of L1
constexpr int64_t kRowPanel = 64;                  // their sums are 16 KiB
// How far ahead a tile fetches that passes over the weights alone (100 ns x 32 GB/s = 3 KiB).
constexpr int64_t kFetchAheadShorts = 2048;

struct Bf16Tile {
  const float* x;         // [kRows][2 * n_pairs], widened
  const uint16_t* w;      // the first of its lines
  const uint16_t* fetch;  // kFetchLines lines of it are fetched per pair
  float* sums;            // [kRows][64]
  int64_t n_pairs;
};

template <int kRows, int kFetchLines>
void AddTile(const Bf16Tile& tile) {
  constexpr int kCols = TileCols<kRows>();
  Vec sums[kRows][kCols];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sums[r][c] = Load(tile.sums + r * kOutBlock + c * kLanes);
  }
  const uint16_t* w = tile.w;
  const uint16_t* fetch = tile.fetch;
  const float* x = tile.x;
  for (int64_t pair = 0; pair < tile.n_pairs; ++pair) {
#pragma GCC unroll 4
    for (int j = 0; j < kFetchLines; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(fetch + j * kLineShorts),
                   kFetchLines == kLines ? _MM_HINT_T0 : _MM_HINT_T1);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        const IntVec words = LoadWords(w + c * 2 * kLanes);
        const Vec line = i == 0 ? WidenFirst(words) : WidenSecond(words);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sums[r][c] = Fma(Set1(x[r * 2 * tile.n_pairs + i]), line, sums[r][c]);
        }
      }
    }
    x += 2;
    w += kPairShorts;
    fetch += kFetchLines * kLineShorts;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) Store(tile.sums + r * kOutBlock + c * kLanes, sums[r][c]);
  }
}

template <int kRows>
void AddTileAndFetch(const Bf16Tile& tile, int n_fetch_lines) {
  switch (n_fetch_lines) {
    case 0:
      return AddTile<kRows, 0>(tile);
    case 1:
      return AddTile<kRows, 1>(tile);
    case 2:
      return AddTile<kRows, 2>(tile);
    default:
      return AddTile<kRows, kLines>(tile);
  }
}

// Outputs that a tile of n_rows takes of the 64.
constexpr int64_t TileOuts(int64_t n_rows) {
  return kLanes * (n_rows == 1 ? TileCols<1>() : n_rows == 2 ? TileCols<2>() : TileCols<3>());
}

void AddTileOfAnyHeight(int64_t n_rows, const Bf16Tile& tile, int n_fetch_lines) {
  switch (n_rows) {
    case 1:
      return AddTileAndFetch<1>(tile, n_fetch_lines);
    case 2:
      return AddTileAndFetch<2>(tile, n_fetch_lines);
    case 3:
      return AddTileAndFetch<3>(tile, n_fetch_lines);
    default:
      return AddTileAndFetch<4>(tile, n_fetch_lines);
  }
}

// Inputs [first, first + 2 * n_pairs) of a row as floats; past its end there are zeros.
KVL_INLINE void WidenInputs(const uint16_t* x, int64_t n_in, int64_t n_pairs, float* to) {
  const int64_t n = Min(n_in, 2 * n_pairs);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, LoadBf16(x + i));
  for (; i < 2 * n_pairs; ++i) {
    const uint32_t bits = i < n ? uint32_t{x[i]} << 16 : 0;
    __builtin_memcpy(to + i, &bits, sizeof(bits));
  }
}

// Sums [n_rows, 64] of one block of outputs.
void AddBf16Block(const LinearPart& part, int64_t first_row, int64_t n_rows, const uint16_t* w,
                  float* sums) {
  const uint16_t* x = static_cast<const uint16_t*>(part.x) + first_row * part.x_stride;
  const int64_t n_pairs = (part.n_in + 1) / 2;
  const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows;
  const int64_t n_passes = n_tiles * (kOutBlock / TileOuts(Min(n_rows, kTileRows)));
  const int fetch_lines = n_passes == 1 ? kLines : n_passes < kLines ? kLines / 2 : 1;
  const int64_t fetch_ahead = n_passes == 1 ? kFetchAheadShorts : kPairChunk * kPairShorts;
  for (int64_t i = 0; i < n_rows * kOutBlock; i += kLanes) Store(sums + i, Zero());
  for (int64_t pair = 0; pair < n_pairs; pair += kPairChunk) {
    const int64_t n = Min(kPairChunk, n_pairs - pair);
    const uint16_t* lines = w + pair * kPairShorts;
    int64_t pass = 0;
    for (int64_t t = 0; t < n_tiles; ++t) {
      // Nearly equal heights: 5 rows are 3 + 2, not 4 + 1.
      const int64_t begin = n_rows * t / n_tiles, height = n_rows * (t + 1) / n_tiles - begin;
      alignas(32) float wide[kTileRows * 2 * kPairChunk];
      for (int64_t r = 0; r < height; ++r) {
        WidenInputs(x + (begin + r) * part.x_stride + 2 * pair, part.n_in - 2 * pair, n,
                    wide + r * 2 * n);
      }
      for (int64_t out = 0; out < kOutBlock; out += TileOuts(height), ++pass) {
        const bool fetches = pass * fetch_lines < kLines;
        const uint16_t* fetch = lines + fetch_ahead + pass * n * fetch_lines * kLineShorts;
        AddTileOfAnyHeight(height,
                           {.x = wide,
                            .w = lines + 2 * out,
                            .fetch = fetches ? fetch : lines,
                            .sums = sums + begin * kOutBlock + out,
                            .n_pairs = n},
                           fetches ? fetch_lines : 0);
      }
    }
  }
}

// --- F32: [n_in][n_out], rows of many KiB. Inputs are taken in groups, each a stream of memory of
// its own, over a strip of outputs whose sums stay in L1; all rows pass over a group of a strip
// before the next. ---

constexpr int kGroupInputs = 8;
constexpr int64_t kStrip = 512;       // outputs: a group's weights are 16 KiB
constexpr int64_t kF32RowPanel = 16;  // their sums are 32 KiB
constexpr int kF32Cols = 2;           // vectors of outputs of a tile

// Adds a group of inputs to the sums of kRows rows over n_out outputs, a multiple of 16 but for the
// padding that weights and sums have. Fetches the next group.
template <int kRows>
void AddF32Group(const float (&x)[kGroupInputs][kTileRows], const float* w, int64_t w_stride,
                 int n_inputs, int64_t n_out, float* sums) {
  for (int64_t out = 0; out < n_out; out += kF32Cols * kLanes) {
    Vec tile[kRows][kF32Cols];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < kF32Cols; ++c) tile[r][c] = Load(sums + r * kStrip + out + c * kLanes);
    }
    const auto add = [&](int i) __attribute__((always_inline)) {
      const float* line = w + i * w_stride + out;
      _mm_prefetch(reinterpret_cast<const char*>(line + kGroupInputs * w_stride), _MM_HINT_T1);
#pragma GCC unroll 2
      for (int c = 0; c < kF32Cols; ++c) {
        const Vec weights = Load(line + c * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) tile[r][c] = Fma(Set1(x[i][r]), weights, tile[r][c]);
      }
    };
    if (n_inputs == kGroupInputs) {
#pragma GCC unroll 8
      for (int i = 0; i < kGroupInputs; ++i) add(i);
    } else {
      for (int i = 0; i < n_inputs; ++i) add(i);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < kF32Cols; ++c) Store(sums + r * kStrip + out + c * kLanes, tile[r][c]);
    }
  }
}

// Sums [n_rows, kStrip] of n_out <= kStrip outputs.
void AddF32Strip(const LinearPart& part, int64_t first_row, int64_t n_rows, const float* w,
                 int64_t n_out, float* sums) {
  const float* x = static_cast<const float*>(part.x) + first_row * part.x_stride;
  for (int64_t i = 0; i < n_rows * kStrip; i += kLanes) Store(sums + i, Zero());
  for (int64_t in = 0; in < part.n_in; in += kGroupInputs, w += kGroupInputs * part.w_stride) {
    const int n_inputs = static_cast<int>(Min(kGroupInputs, part.n_in - in));
    for (int64_t row = 0; row < n_rows; row += kTileRows) {
      const int64_t height = Min(kTileRows, n_rows - row);
      float group[kGroupInputs][kTileRows];
      for (int64_t r = 0; r < height; ++r) {
        for (int i = 0; i < n_inputs; ++i) group[i][r] = x[(row + r) * part.x_stride + in + i];
      }
      float* to = sums + row * kStrip;
      switch (height) {
        case 1:
          AddF32Group<1>(group, w, part.w_stride, n_inputs, n_out, to);
          break;
        case 2:
          AddF32Group<2>(group, w, part.w_stride, n_inputs, n_out, to);
          break;
        case 3:
          AddF32Group<3>(group, w, part.w_stride, n_inputs, n_out, to);
          break;
        default:
          AddF32Group<4>(group, w, part.w_stride, n_inputs, n_out, to);
          break;
      }
    }
  }
}

// --- Results. ---

// n <= kLanes values of a row.
KVL_INLINE void StoreLanes(Vec value, int64_t n, void* y, int64_t offset, DType y_type,
                           bool accumulate) {
  if (y_type == DType::kBf16) {
    return StoreFirstBf16(static_cast<uint16_t*>(y) + offset, n, value);
  }
  float* to = static_cast<float*>(y) + offset;
  if (accumulate) value = value + LoadFirst(to, n);
  StoreFirst(to, n, value);
}

// Rows of n_out sums that lie sums_stride apart, outputs [first_out, first_out + n_out) of the
// part.
void StoreSums(const LinearPart& part, int64_t first_row, int64_t n_rows, int64_t first_out,
               int64_t n_out, const float* sums, int64_t sums_stride) {
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t j = 0; j < n_out; j += kLanes) {
      Vec value = Load(sums + r * sums_stride + j);
      if (part.bias != nullptr) value = value + LoadFirst(part.bias + first_out + j, n_out - j);
      StoreLanes(value, n_out - j, part.y, (first_row + r) * part.y_stride + first_out + j,
                 part.y_type, part.accumulate);
    }
  }
}

}  // namespace

void MultiplyBf16Avx2(const LinearPart& part) {
  alignas(64) float sums[kRowPanel * kOutBlock];
  for (int64_t row = 0; row < part.n_rows; row += kRowPanel) {
    const int64_t n_rows = Min(kRowPanel, part.n_rows - row);
    const uint16_t* w = static_cast<const uint16_t*>(part.w);
    for (int64_t out = 0; out < part.n_out; out += kOutBlock, w += kOutBlock * part.w_stride) {
      AddBf16Block(part, row, n_rows, w, sums);
      StoreSums(part, row, n_rows, out, Min(kOutBlock, part.n_out - out), sums, kOutBlock);
    }
  }
}

void MultiplyF32Avx2(const LinearPart& part) {
  alignas(64) float sums[kF32RowPanel * kStrip];
  for (int64_t row = 0; row < part.n_rows; row += kF32RowPanel) {
    const int64_t n_rows = Min(kF32RowPanel, part.n_rows - row);
    for (int64_t out = 0; out < part.n_out; out += kStrip) {
      const int64_t n_out = Min(kStrip, part.n_out - out);
      AddF32Strip(part, row, n_rows, static_cast<const float*>(part.w) + out, n_out, sums);
      StoreSums(part, row, n_rows, out, n_out, sums, kStrip);
    }
  }
}

void StoreRowsAvx2(const StoreRowsParams& p) {
  for (int64_t r = 0; r < p.n_rows; ++r) {
    for (int64_t j = 0; j < p.n_out; j += kLanes) {
      const int64_t n = p.n_out - j;
      StoreLanes(LoadFirst(p.from + r * p.n_out + j, n), n, p.y, r * p.y_stride + j, p.y_type,
                 p.accumulate);
    }
  }
}

}  // namespace kvlathe
