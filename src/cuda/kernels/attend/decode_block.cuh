// One block of 64 entries against the rows of an item: scores, softmax, values. A warp does it
// alone. Scores are logarithms to the base 2.
#pragma once

#include "cuda/kernels/attend/attend_layout.h"
#include "cuda/kernels/attend/readers.cuh"
#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kMinusInf = -1e38f;  // below every score; finite, so that differences are
inline constexpr int kProbStride = 144;     // bytes from row to row of probabilities

// Bytes from row to row of numbers of 16 bits that lanes read 8 bytes at a time: rows g and i lie
// in different banks.
constexpr int RowStride(int n_numbers) {
  const int bytes = 2 * n_numbers;
  return bytes % 64 == 0 ? bytes + 32 : bytes;
}

struct alignas(16) Floats4 {
  float x[4];
};

// What a warp works with, in shared memory but for the pointer to tables.
struct WarpRows {
  const std::byte* q_f16 = nullptr;   // rows of queries times powers of two of their own
  const std::byte* q_bf16 = nullptr;  // rows of queries
  int q_stride = 0;                   // bytes
  std::byte* probs = nullptr;         // [8 kN][kProbStride], of this warp
  Floats4* o = nullptr;               // [kN][v_tiles][32], of this warp
  int v_tiles = 0;
  const AttendTables* tables = nullptr;
};

// Of 8 rows by 64 entries: product n, then (entry 2 g, row 2 i), (2 g, 2 i + 1), (2 g + 1, 2 i),
// (2 g + 1, 2 i + 1).
using RowScores = float[4][4];

// B of a tile of K: 4 channels of a row.
KVL_DEVICE void LoadQueries(const std::byte* rows, int stride, int row8, int tile,
                            uint32_t (&b)[2]) {
  const int lane = simt::Lane();
  const auto* const from = reinterpret_cast<const Words2*>(rows + (8 * row8 + lane / 4) * stride +
                                                           tile * 32 + lane % 4 * 8);
  b[0] = from->x[0];
  b[1] = from->x[1];
}

KVL_DEVICE uint32_t TimesF16(uint32_t a, uint32_t b) { return simt::FmaF16x2(a, b, 0); }
KVL_DEVICE float LowF16(uint32_t pair) { return simt::FloatOfF16(pair & 0xffff); }
KVL_DEVICE float HighF16(uint32_t pair) { return simt::FloatOfF16(pair >> 16); }

template <int kN>
KVL_DEVICE void AddRowScores(const WarpRows& rows, const std::byte* block, const SideLayout& side,
                             RowScores (&x)[kN]) {
  const TileAt at = RowReader::KeyTile(block, simt::Lane());
  for (int tile = 0; tile < side.n_tiles; ++tile) {
    RowReader::Words words;
    RowReader::Load(at, tile * RowReader::kKeyStep, &words);
    Tile a;
    RowReader::Rows(words, a);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      uint32_t b[2];
      LoadQueries(rows.q_bf16, rows.q_stride, row8, tile, b);
#pragma unroll
      for (int n = 0; n < 4; ++n) simt::MmaBf16(x[row8][n], a[n], b);
    }
  }
}

// `scales`: those of the block.
template <int kBits, int kN>
KVL_DEVICE void AddNumberScores(const WarpRows& rows, const std::byte* block,
                                const SideLayout& side, const std::byte* scales,
                                RowScores (&x)[kN]) {
  using Reader = CodeReader<kBits>;
  const int lane = simt::Lane();
  const TileAt at = Reader::KeyTile(block + side.segments[0].codes, lane);
  const uint32_t flip = side.is_symmetric != 0 ? 0x80808080 : 0;
  const float middle = kBits == 8 ? -128.0f : -8.0f;
  scales += lane / 4 * 4;
  for (int first = 0; first < side.n_tiles; first += side.group_tiles) {
    const int end =
        first + side.group_tiles < side.n_tiles ? first + side.group_tiles : side.n_tiles;
    RowScores part[kN] = {};
    float sums[kN][4] = {};
    for (int tile = first; tile < end; ++tile) {
      typename Reader::Words words;
      Reader::Load(at, tile * Reader::kKeyStep, &words);
      Tile a;
      Reader::Numbers(words, flip, lane, a);
      constexpr uint32_t kOnes[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
        uint32_t b[2];
        LoadQueries(rows.q_f16, rows.q_stride, row8, tile, b);
#pragma unroll
        for (int n = 0; n < 4; ++n) simt::MmaF16(part[row8][n], a[n], b);
        simt::MmaF16(sums[row8], kOnes, b);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t two = simt::LoadWord(scales + n * 32);
      float scale[2] = {LowF16(two), HighF16(two)}, minimum[2];
      if (side.is_symmetric != 0) {
        minimum[0] = middle * scale[0];
        minimum[1] = middle * scale[1];
      } else {
        const uint32_t minima = simt::LoadWord(scales + 128 + n * 32);
        minimum[0] = LowF16(minima);
        minimum[1] = HighF16(minima);
      }
      scale[0] *= Reader::UnitOf(n);
      scale[1] *= Reader::UnitOf(n);
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[row8][n][c] += scale[c / 2] * part[row8][n][c] + minimum[c / 2] * sums[row8][c % 2];
        }
      }
    }
    scales += side.is_symmetric != 0 ? 128 : 256;
  }
}

// Of codes whose scales are those of channels; sets x. `scales`: those of the block's first entry.
// Scales are multiplied into queries. What minima add is the same for all entries that share them:
// queries times minima of product n, as column n of a product of its own.
template <int kBits, int kN>
KVL_DEVICE void AddScoresByChannel(const WarpRows& rows, const std::byte* block,
                                   const SideLayout& side, const std::byte* scales,
                                   RowScores (&x)[kN]) {
  using Reader = CodeReader<kBits>;
  const int lane = simt::Lane();
  const TileAt at = Reader::KeyTile(block + side.segments[0].codes, lane);
  // Products whose entries share scales are 2^shift.
  const int shift = side.group_tokens >= kBlockSize ? 2 : side.group_tokens / 32;
  const uint32_t group_bytes = side.n_tiles * 64;  // scales and minima of all channels
  scales += lane % 4 * 8;
  const std::byte* const minima = scales + (lane / 4 % 4 >> shift) * group_bytes + group_bytes / 2;
  RowScores part[kN] = {};
  float lowest[4] = {};
  for (int tile = 0; tile < side.n_tiles; ++tile) {
    typename Reader::Words words;
    Reader::Load(at, tile * Reader::kKeyStep, &words);
    Tile a;
    Reader::Numbers(words, 0, lane, a);
    uint32_t q[kN][2], b[kN][2], q_rows[4] = {};
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      LoadQueries(rows.q_f16, rows.q_stride, row8, tile, q[row8]);
      q_rows[row8] = q[row8][0];
      q_rows[row8 + 2] = q[row8][1];
    }
    const Words2 of_minima = simt::LoadWords2(minima + static_cast<uint32_t>(tile * 32));
    simt::MmaF16(lowest, q_rows, of_minima.x);
    const std::byte* of_tile = scales + static_cast<uint32_t>(tile * 32);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n == 0 || shift == 0 || (n == 2 && shift == 1)) {
        if (n > 0) of_tile += group_bytes;
        const Words2 scale = simt::LoadWords2(of_tile);
#pragma unroll
        for (int row8 = 0; row8 < kN; ++row8) {
          b[row8][0] = TimesF16(q[row8][0], scale.x[0]);
          b[row8][1] = TimesF16(q[row8][1], scale.x[1]);
        }
      }
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) simt::MmaF16(part[row8][n], a[n], b[row8]);
    }
  }
#pragma unroll
  for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float of_row =
            simt::Shuffle(lowest[2 * row8 + n % 2], (2 * (lane % 4) + j) * 4 + n / 2);
        x[row8][n][j] = Reader::UnitOf(n) * part[row8][n][j] + of_row;
        x[row8][n][j + 2] = Reader::UnitOf(n) * part[row8][n][j + 2] + of_row;
      }
    }
  }
}

KVL_DEVICE uint32_t TableOfLane(const WarpRows& rows, int unit, int bits) {
  return rows.tables->values[unit][bits - 1][simt::Lane()];
}

template <int kBits, int kN>
KVL_DEVICE void AddUnitScores(const WarpRows& rows, const std::byte* block, int unit,
                              const TileSegment& segment, int first_tile, RowScores (&x)[kN]) {
  using Reader = CodeReader<kBits>;
  const int lane = simt::Lane();
  const TileAt at = Reader::KeyTile(block + segment.codes, lane);
  const uint32_t table = kBits == 8 ? 0 : TableOfLane(rows, unit, kBits);
  for (int tile = 0; tile < segment.n_tiles; ++tile) {
    typename Reader::Words words;
    Reader::Load(at, tile * Reader::kKeyStep, &words);
    Tile a;
    Reader::Units(words, table, lane, a);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      uint32_t b[2];
      LoadQueries(rows.q_f16, rows.q_stride, row8, first_tile + tile, b);
#pragma unroll
      for (int n = 0; n < 4; ++n) simt::MmaF16(x[row8][n], a[n], b);
    }
  }
}

KVL_DEVICE float ScaleOfByteF32(uint32_t byte) {
  return std::bit_cast<float>((byte << kScaleShift) + kScaleBase);
}

// Scores of codes count in scales of entries.
template <int kN>
KVL_DEVICE void ScaleScores(const std::byte* scales, RowScores (&x)[kN]) {
  const int g = simt::Lane() / 4;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t word = simt::LoadWord(scales + 16 * n + g / 2 * 4) >> (g % 2 * 16);
    const float scale[2] = {ScaleOfByteF32(word & 0xff), ScaleOfByteF32(word >> 8 & 0xff)};
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[row8][n][c] *= scale[c / 2];
    }
  }
}

// The records of a block's run, from where its own scales begin.
struct BlockScales {
  const std::byte* k;
  const std::byte* v;
};

// Scores of codes, in units of queries in F16.
template <int kN>
KVL_DEVICE void AddCodeScores(const WarpRows& rows, const std::byte* block, const SideLayout& side,
                              const std::byte* scales, RowScores (&x)[kN]) {
  if (side.reading == Reading::kNumbers) {
    const int bits = side.segments[0].bits;
    if (side.scales == Scales::kChannel) {
      if (bits == 4) return AddScoresByChannel<4, kN>(rows, block, side, scales, x);
      if (bits == 2) return AddScoresByChannel<2, kN>(rows, block, side, scales, x);
      if (bits == 3) return AddScoresByChannel<3, kN>(rows, block, side, scales, x);
      return AddScoresByChannel<8, kN>(rows, block, side, scales, x);
    }
    if (bits == 4) return AddNumberScores<4, kN>(rows, block, side, scales, x);
    if (bits == 8) return AddNumberScores<8, kN>(rows, block, side, scales, x);
    if (bits == 2) return AddNumberScores<2, kN>(rows, block, side, scales, x);
    return AddNumberScores<3, kN>(rows, block, side, scales, x);
  }
  int tile = 0;
  for (int i = 0; i < side.n_segments; ++i) {
    const TileSegment& segment = side.segments[i];
    switch (segment.bits) {
      case 1:
        AddUnitScores<1, kN>(rows, block, side.unit, segment, tile, x);
        break;
      case 2:
        AddUnitScores<2, kN>(rows, block, side.unit, segment, tile, x);
        break;
      case 3:
        AddUnitScores<3, kN>(rows, block, side.unit, segment, tile, x);
        break;
      case 4:
        AddUnitScores<4, kN>(rows, block, side.unit, segment, tile, x);
        break;
      case 5:
        AddUnitScores<5, kN>(rows, block, side.unit, segment, tile, x);
        break;
      default:
        AddUnitScores<8, kN>(rows, block, side.unit, segment, tile, x);
    }
    tile += segment.n_tiles;
  }
  if (side.scales == Scales::kByte) ScaleScores<kN>(scales, x);
}

// --- Values ---

// Probabilities of a row over entries 16 i to 16 i + 15, in pairs; pairs n and n + 4 are B of
// product n.
using RowProbs = uint32_t[8];

template <int kN>
KVL_DEVICE void LoadProbs(const WarpRows& rows, RowProbs (&probs)[kN]) {
  const int lane = simt::Lane();
#pragma unroll
  for (int row8 = 0; row8 < kN; ++row8) {
    const auto* const from = reinterpret_cast<const Words4*>(
        rows.probs + (8 * row8 + lane / 4) * kProbStride + lane % 4 * 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 four = from[half];
#pragma unroll
      for (int w = 0; w < 4; ++w) probs[row8][4 * half + w] = four.x[w];
    }
  }
}

// c += a tile of V times the probabilities of 8 rows.
KVL_DEVICE void AddValues(const Tile& a, const RowProbs& probs, float (&c)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t b[2] = {probs[n], probs[n + 4]};
    simt::MmaF16(c, a[n], b);
  }
}

// Sums of the probabilities of rows 2 i and 2 i + 1.
template <bool kIsBf16>
KVL_DEVICE void SumProbs(const RowProbs& probs, float (&sums)[2]) {
  constexpr uint32_t kOne = kIsBf16 ? 0x3f803f80 : 0x3c003c00;
  constexpr uint32_t kOnes[4] = {kOne, kOne, kOne, kOne};
  float c[4] = {};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t b[2] = {probs[n], probs[n + 4]};
    if constexpr (kIsBf16) {
      simt::MmaBf16(c, kOnes, b);
    } else {
      simt::MmaF16(c, kOnes, b);
    }
  }
  sums[0] = c[0];
  sums[1] = c[1];
}

// Moves o of a tile to new maxima.
KVL_DEVICE Floats4 Shrunk(const Floats4& o, const float (&alpha)[2]) {
  return {o.x[0] * alpha[0], o.x[1] * alpha[1], o.x[2] * alpha[0], o.x[3] * alpha[1]};
}

// Entries of V outside [begin, end) are not used, whatever they hold.
struct SeenEntries {
  int begin, end;
  bool are_all;
};

template <int kN>
KVL_DEVICE void AddRowValues(const WarpRows& rows, const std::byte* block, const SideLayout& side,
                             const SeenEntries& seen, const RowProbs (&probs)[kN],
                             const float (&alpha)[kN][2]) {
  const int lane = simt::Lane();
  const TileAt at = RowReader::ValueTile(block + side.segments[0].codes, side.n_tiles, lane);
  for (int tile = 0; tile < side.n_tiles; ++tile) {
    RowReader::Words words;
    RowReader::Load(at, tile * RowReader::kValueStep, &words);
    Tile a;
    RowReader::Rows(words, a);
    if (!seen.are_all) RowReader::ClearUnseenValues(seen.begin, seen.end, lane, a);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      float c[4] = {};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t b[2] = {probs[row8][n], probs[row8][n + 4]};
        simt::MmaBf16(c, a[n], b);
      }
      Floats4& o = rows.o[(row8 * rows.v_tiles + tile) * simt::kWarp + lane];
      Floats4 sum = Shrunk(o, alpha[row8]);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.x[j] += c[j];
      o = sum;
    }
  }
}

// Probabilities times scales of entries, of which `scales` are F16 [kBlockSize].
template <int kN>
KVL_DEVICE void ScaleProbs(const std::byte* scales, const RowProbs (&probs)[kN],
                           RowProbs (&scaled)[kN]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Words4 four = simt::LoadWords4(scales + simt::Lane() % 4 * 32 + 16 * half);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
        scaled[row8][4 * half + w] = TimesF16(probs[row8][4 * half + w], four.x[w]);
      }
    }
  }
}
// Of which they are bytes. ScaleOfByte is exact in F16.
template <int kN>
KVL_DEVICE void ScaleProbsByBytes(const std::byte* scales, RowProbs (&probs)[kN]) {
  const Words4 four = simt::LoadWords4(scales + simt::Lane() % 4 * 16);
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    const uint32_t two = simt::PermuteBytes(four.x[w / 2], 0, w % 2 == 0 ? 0x4140 : 0x4342);
    const uint32_t pair = two * 64 + 0x10001000;
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) probs[row8][w] = TimesF16(probs[row8][w], pair);
  }
}

template <int kBits, int kN>
KVL_DEVICE void AddNumberValues(const WarpRows& rows, const std::byte* block,
                                const SideLayout& side, const std::byte* scales,
                                const RowProbs (&probs)[kN], const float (&alpha)[kN][2]) {
  using Reader = CodeReader<kBits>;
  const int lane = simt::Lane();
  const TileAt at = Reader::ValueTile(block + side.segments[0].codes, side.n_tiles, lane);
  const uint32_t flip = side.is_symmetric != 0 ? 0x80808080 : 0;
  for (int first = 0; first < side.n_tiles; first += side.group_tiles) {
    const int end =
        first + side.group_tiles < side.n_tiles ? first + side.group_tiles : side.n_tiles;
    RowProbs scaled[kN];
    ScaleProbs<kN>(scales, probs, scaled);
    float lowest[kN][4] = {};  // what minima add
    if (side.is_symmetric != 0) {
      constexpr uint32_t kMiddle = kBits == 8 ? 0xd800d800 : 0xc800c800;  // -128, -8
      constexpr uint32_t kMiddles[4] = {kMiddle, kMiddle, kMiddle, kMiddle};
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint32_t b[2] = {scaled[row8][n], scaled[row8][n + 4]};
          simt::MmaF16(lowest[row8], kMiddles, b);
        }
      }
    } else {
      const std::byte* const minima = scales + 128 + lane % 4 * 32;
      const Words4 near = simt::LoadWords4(minima), far = simt::LoadWords4(minima + 16);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t a[4] = {near.x[n], near.x[n], far.x[n], far.x[n]};
#pragma unroll
        for (int row8 = 0; row8 < kN; ++row8) {
          const uint32_t b[2] = {probs[row8][n], probs[row8][n + 4]};
          simt::MmaF16(lowest[row8], a, b);
        }
      }
    }
    for (int tile = first; tile < end; ++tile) {
      typename Reader::Words words;
      Reader::Load(at, tile * Reader::kValueStep, &words);
      Tile a;
      Reader::Numbers(words, flip, lane, a);
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
        float c[2][4] = {};  // where codes are raised apart
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint32_t b[2] = {scaled[row8][n], scaled[row8][n + 4]};
          simt::MmaF16(c[Reader::IsRaised(n) ? 1 : 0], a[n], b);
        }
        Floats4& o = rows.o[(row8 * rows.v_tiles + tile) * simt::kWarp + lane];
        Floats4 sum = Shrunk(o, alpha[row8]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float added = kNumberUnit * c[0][j] + lowest[row8][j];
          if constexpr (Reader::kRaised > 0) added += Reader::kRaisedUnit * c[1][j];
          sum.x[j] += added;
        }
        o = sum;
      }
    }
    scales += side.is_symmetric != 0 ? 128 : 256;
  }
}

template <int kBits, int kN>
KVL_DEVICE void AddUnitValues(const WarpRows& rows, const std::byte* block, int unit,
                              const TileSegment& segment, int first_tile,
                              const RowProbs (&probs)[kN], const float (&alpha)[kN][2]) {
  using Reader = CodeReader<kBits>;
  const int lane = simt::Lane();
  const TileAt at = Reader::ValueTile(block + segment.codes, segment.n_tiles, lane);
  const uint32_t table = kBits == 8 ? 0 : TableOfLane(rows, unit, kBits);
  for (int tile = 0; tile < segment.n_tiles; ++tile) {
    typename Reader::Words words;
    Reader::Load(at, tile * Reader::kValueStep, &words);
    Tile a;
    Reader::Units(words, table, lane, a);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      float c[4] = {};
      AddValues(a, probs[row8], c);
      Floats4& o = rows.o[(row8 * rows.v_tiles + first_tile + tile) * simt::kWarp + lane];
      Floats4 sum = Shrunk(o, alpha[row8]);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.x[j] += c[j];
      o = sum;
    }
  }
}

template <int kN>
KVL_DEVICE void AddCodeValues(const WarpRows& rows, const std::byte* block, const SideLayout& side,
                              const std::byte* scales, RowProbs (&probs)[kN],
                              const float (&alpha)[kN][2]) {
  if (side.reading == Reading::kNumbers) {
    const int bits = side.segments[0].bits;
    if (bits == 4) return AddNumberValues<4, kN>(rows, block, side, scales, probs, alpha);
    if (bits == 8) return AddNumberValues<8, kN>(rows, block, side, scales, probs, alpha);
    if (bits == 2) return AddNumberValues<2, kN>(rows, block, side, scales, probs, alpha);
    return AddNumberValues<3, kN>(rows, block, side, scales, probs, alpha);
  }
  if (side.scales == Scales::kByte) ScaleProbsByBytes<kN>(scales, probs);
  int tile = 0;
  for (int i = 0; i < side.n_segments; ++i) {
    const TileSegment& segment = side.segments[i];
    switch (segment.bits) {
      case 1:
        AddUnitValues<1, kN>(rows, block, side.unit, segment, tile, probs, alpha);
        break;
      case 2:
        AddUnitValues<2, kN>(rows, block, side.unit, segment, tile, probs, alpha);
        break;
      case 3:
        AddUnitValues<3, kN>(rows, block, side.unit, segment, tile, probs, alpha);
        break;
      case 4:
        AddUnitValues<4, kN>(rows, block, side.unit, segment, tile, probs, alpha);
        break;
      case 5:
        AddUnitValues<5, kN>(rows, block, side.unit, segment, tile, probs, alpha);
        break;
      default:
        AddUnitValues<8, kN>(rows, block, side.unit, segment, tile, probs, alpha);
    }
    tile += segment.n_tiles;
  }
  for (; tile < side.n_tiles; ++tile) {  // channels without codes are zero
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      Floats4& o = rows.o[(row8 * rows.v_tiles + tile) * simt::kWarp + simt::Lane()];
      o = Shrunk(o, alpha[row8]);
    }
  }
}

}  // namespace kvlathe::cuda
