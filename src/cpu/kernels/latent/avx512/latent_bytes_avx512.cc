// A dot of bytes takes four channels of 16 tokens at once, where one of Bf16 takes two. Rounding
// adds to a weight 0.3 of a 127th of the largest of its column and step, and to a code at most 0.3
// of a step (LatentBytes): for most columns a fiftieth of what codes of 2 bits lose.
//
// Latents lie as [channel / 4][token][4] bytes, a line of 64 bytes being 16 tokens.
#include "cpu/kernels/latent/avx512/latent_bytes_avx512.h"

#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/latent/avx512/key_tiles_avx512.h"

namespace kvlathe {
namespace {

constexpr int kQuadBytes = 4 * kBlockSize;
constexpr int kTileVectors = 2;  // of 16 tokens, in registers at a time

// Reads codes of unit_codes.h as bytes.
template <int kBits>
struct ByteReader : CodeGroup<kBits> {
  IntVec tables[2];

  KVL_INLINE explicit ByteReader(StoredUnit unit) {
    if constexpr (kBits == 8) return;
    const auto* bytes = reinterpret_cast<const int8_t*>(UnitBytes(kBits, unit));
    tables[0] = LoadTable(bytes), tables[1] = LoadTable(bytes + 16);
  }

  // Of lines `line` and `line` + kHalf of a group, in the order of CodePair.
  KVL_INLINE IntVec Lines(const std::byte* group, int line) const {
    const CodePair<kBits> pair(group, line, 0);
    if constexpr (kBits == 8) {
      return pair.places;
    } else {
      return pair.Find(tables[0], tables[1]);
    }
  }
};

// Lines of four channels from those of two and of the next two.
KVL_INLINE void StoreQuads(IntVec first, IntVec second, uint8_t* low, uint8_t* high) {
  _mm512_store_si512(low, _mm512_unpacklo_epi16(first, second));
  _mm512_store_si512(high, _mm512_unpackhi_epi16(first, second));
}

// A line of K is two channels of a quarter of the tokens: quarter line % 4 of pair line / 4.
template <int kBits>
KVL_INLINE void ReadSegmentBytes(const CodeSegment& segment, StoredUnit unit,
                                 const std::byte* codes, uint8_t* to) {
  using Reader = ByteReader<kBits>;
  const Reader reader(unit);
  const uint8_t* const end = to + kBlockSize * segment.n_channels;
  while (to < end) {
    if constexpr (kBits == 1) {  // lines of pairs 0 and 2, and of 1 and 3
      Unroll<4>([&](auto q) KVL_PART {
        uint8_t* const quarter = to + 64 * q.value;
        StoreQuads(reader.Lines(codes, q.value), reader.Lines(codes, q.value + 4), quarter,
                   quarter + kQuadBytes);
      });
      codes += Reader::kBytes, to += 2 * kQuadBytes;
    } else if constexpr (kBits <= 3) {  // of pairs 0 and 1
      Unroll<4>([&](auto q) KVL_PART {
        const IntVec both = reader.Lines(codes, q.value);
        _mm512_store_si512(to + 64 * q.value,
                           _mm512_unpacklo_epi16(both, _mm512_bsrli_epi128(both, 8)));
      });
      codes += Reader::kBytes, to += kQuadBytes;
    } else if constexpr (kBits <= 5) {  // of quarters 0 and 2, or 1 and 3, of one pair
      Unroll<2>([&](auto q) KVL_PART {
        StoreQuads(reader.Lines(codes, q.value), reader.Lines(codes + Reader::kBytes, q.value),
                   to + 64 * q.value, to + 64 * (q.value + 2));
      });
      codes += 2 * Reader::kBytes, to += kQuadBytes;
    } else {  // of quarters 0 and 1, or 2 and 3, of one pair
      Unroll<2>([&](auto half) KVL_PART {
        const std::byte* const first = codes + half.value * Reader::kBytes;
        uint8_t* const quarter = to + 128 * half.value;
        StoreQuads(reader.Lines(first, 0), reader.Lines(first + 2 * Reader::kBytes, 0), quarter,
                   quarter + 64);
      });
      codes += 4 * Reader::kBytes, to += kQuadBytes;
    }
  }
}

void ReadBytes(const PackedSideView& side, StoredUnit unit, const std::byte* block, uint8_t* to) {
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    WithCount<8>(segment.bits, [&](auto bits) KVL_PART {
      if constexpr (bits.value < 6 || bits.value == 8) {
        ReadSegmentBytes<bits.value>(segment, unit, block + segment.codes,
                                     to + kBlockSize * segment.first);
      }
    });
  }
}

// What a byte times a unit of weights is worth, by step.
struct StepSizes {
  float of[kByteSteps];
};

// Sums of 32 bits plus four products each. They stay in their registers: g++ would copy them back
// and forth (lanes.h, AddDots).
KVL_INLINE void AddByteDots(__m512i latents, __m512i weights, __m512i* sums) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(latents), "v"(weights));
}

// Four channels of all tokens, as StoreKeys takes them.
template <bool kTurns>
KVL_INLINE void ByteTile(const LatentBlock& b, const LatentBytes& bytes, const StepSizes& sizes,
                         const uint8_t* latents, const float* scales, int i, int step,
                         uint16_t* keys) {
  const int64_t n_coded = bytes.ends[kByteSteps - 1];
  const int channels[4] = {i, i + 1, i + step, i + step + 1};
  for (int token = 0; token < kBlockSize; token += 16 * kTileVectors) {
    __m512 rows[4][kTileVectors] = {};
    const uint8_t* line = latents + 4 * token;
    const int8_t* weights = bytes.numbers + int64_t{i} * n_coded;
    const int8_t* partners = bytes.numbers + int64_t{i + step} * n_coded;
    for (int s = 0, channel = 0; s < kByteSteps; ++s) {
      if (bytes.ends[s] == channel) continue;
      const int32_t* const starts = bytes.starts + s * b.map.head_dim;
      const float* const units = bytes.units + s * b.map.head_dim;
      __m512i sums[4][kTileVectors];
      Unroll<4>([&](auto r) KVL_PART {
        Unroll<kTileVectors>([&](auto c) KVL_PART {
          sums[r.value][c.value] = _mm512_set1_epi32(starts[channels[r.value]]);
        });
      });
      for (; channel < bytes.ends[s]; channel += 4, weights += 4, partners += 4) {
        const __m512i lines[kTileVectors] = {_mm512_load_si512(line), _mm512_load_si512(line + 64)};
        const int8_t* const at[4] = {weights, weights + n_coded, partners, partners + n_coded};
        Unroll<4>([&](auto r) KVL_PART {
          int32_t quad;
          __builtin_memcpy(&quad, at[r.value], sizeof(quad));
          const __m512i weight = _mm512_set1_epi32(quad);
          Unroll<kTileVectors>([&](auto c) KVL_PART {
            AddByteDots(lines[c.value], weight, &sums[r.value][c.value]);
          });
        });
        line += kQuadBytes;
      }
      Unroll<4>([&](auto r) KVL_PART {
        const __m512 unit = _mm512_set1_ps(units[channels[r.value]] * sizes.of[s]);
        Unroll<kTileVectors>([&](auto c) KVL_PART {
          rows[r.value][c.value] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r.value][c.value]), unit,
                                                   rows[r.value][c.value]);
        });
      });
    }
    Unroll<kTileVectors>([&](auto c) KVL_PART {
      const int first = token + 16 * c.value;
      const __m512 scale = _mm512_load_ps(scales + first);
      __m512 scaled[4];
      Unroll<4>([&](auto r) KVL_PART {
        scaled[r.value] = _mm512_fmadd_ps(rows[r.value][c.value], scale,
                                          _mm512_set1_ps(b.map.offset[channels[r.value]]));
      });
      StoreKeys<kTurns>(b, scaled, i, step, first, keys);
    });
  }
}

}  // namespace

void ReadKeysOfBytes(const LatentBlock& b, const LatentBytes& bytes, const float* scales,
                     uint8_t* latents, uint16_t* keys) {
  const StoredUnit unit = scales == nullptr ? StoredUnit::kChannel : StoredUnit::kToken;
  alignas(64) float ones[kBlockSize];
  if (scales == nullptr) {
    for (float& scale : ones) scale = 1;
    scales = ones;
  }
  StepSizes sizes;
  for (int s = 0; s < kByteSteps; ++s) sizes.of[s] = ByteStep(s, unit);
  ReadBytes(b.run->k, unit, b.block, latents);
  ForEachTile(b, [&](auto turns, int i, int step) KVL_PART {
    ByteTile<turns.value != 0>(b, bytes, sizes, latents, scales, i, step, keys);
  });
}

}  // namespace kvlathe
