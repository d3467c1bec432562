// Dots of bytes with rows of weights, over vectors of lanes.h, for the channels whose codes have 1
// to kMostByteBits bits: codes become bytes, and so do weights.
//
// Where the machine adds dots of bytes to sums of 32 bits (kHasByteDots), codes of 1 to 4 bits are
// UnitBytes and weights have 8 bits; bytes of 5 bits would add 4% to what their codes lose.
// Elsewhere codes of 1 to kSmallBits bits are SmallUnitBytes, of 7 bits, and weights too: two
// products of a channel's or token's byte with its weight are added in 16 bits and four of those
// sums before they are widened, which takes five instructions where words of 16 bits
// (code_dots_lanes.h) take eight.
//
// The error of a weight is at most half of a 63rd (queries) or 127th (probabilities) of the largest
// of its row, or half of that with dots of bytes, and that of a code half of a step. Channels share
// their bits so that each loses about as much (plan/), and what rounding adds to that is alike in
// all. Where the largest query is four times their deviation, either loses less than a fiftieth of
// what codes of kSmallBits bits lose.
//
// Bytes lie in quads: of K [quad of channels][token][4], and of V in columns of 16 channels,
// [column][quad of tokens][16][4]. A quad has the channels, or tokens, that one look-up finds: two
// pairs that lie `distance` pairs apart (SmallReader). K of 4 bits has quads of two look-ups.
// Weights are laid out so too.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/byte_tiles.h"
#include "cpu/kernels/attend/code_dots_lanes.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/lanes.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kKeyQuadBytes = 4 * kBlockSize;
constexpr int kColumnBytes = 16 * kBlockSize;
// Whether ByteTiles may multiply these bytes.
constexpr bool kMayHaveByteTiles = kHasByteDots && kLanes == 16;
constexpr int kMostByteBits = kHasByteDots ? 4 : kSmallBits;
#if defined(__AVX512VBMI__) && !defined(KVLATHE_NARROW_LANES)
constexpr int16_t kSignOfBytes = static_cast<int16_t>(0x8080);
#endif
// The codes of K are stored plus kSmallOffset, without a sign. Probabilities have no sign, so codes
// of V keep theirs. Without dots of bytes weights are so small that four products fit into 16 bits.
constexpr int kSmallOffset = kHasByteDots ? 128 : kLargestSmall;
constexpr int kLargestQueryByte = kHasByteDots ? 127 : 63;
constexpr int kLargestProbByte = kHasByteDots ? 255 : 127;
static_assert(kHasByteDots || 4 * 2 * kLargestSmall * kLargestQueryByte < 32768);
static_assert(kHasByteDots || 4 * kLargestSmall * kLargestProbByte < 32768);

// The channels of a side that have more bits.
KVL_INLINE int WideChannelsOf(const PackedSideView& side) {
  if (!kHasByteDots) return side.n_wide;
  int n = 0;
  for (int i = 0; i < side.n_segments && side.segments[i].bits > kMostByteBits; ++i) {
    n += side.segments[i].n_channels;
  }
  return n;
}
// What a byte of a segment counts.
KVL_INLINE float StepOf(const PackedSideView& side, const CodeSegment& segment) {
  return kHasByteDots ? segment.byte_step : side.small_step;
}

// Reads codes of 1 to kMostByteBits bits as bytes, four channels of 8 tokens or the other way round
// at a time: those of lines `line` and `line` + kHalf of a group.
template <int kBits>
struct SmallReader : CodeGroup<kBits> {
#if defined(__AVX512VBMI__) && !defined(KVLATHE_NARROW_LANES)
  using CodeGroup<kBits>::kHalf, CodeGroup<kBits>::kLow;

  IntVec table;  // of all windows, twice

  KVL_INLINE SmallReader(const CodeSegment& segment, bool is_key)
      : table(AddBytes(LoadTwice(segment.bytes), SetWords(is_key ? 0 : kSignOfBytes))) {}

  KVL_INLINE IntVec Pairs(const std::byte* group, int line, int part) const {
    return Find(group, line, part, LoadTable(kPairsByLine), 0x00ff);
  }
  KVL_INLINE IntVec Quads(const std::byte* group, int line, int part) const {
    return Find(group, line, part, LoadTable(kPairsInTurn), 0x3333);
  }

 private:
  // In every 128 bits the lower bytes of all words, which have the windows of the first line, then
  // the upper ones; and two of either in turn.
  alignas(16) static constexpr int8_t kPairsByLine[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                          1, 3, 5, 7, 9, 11, 13, 15};
  alignas(16) static constexpr int8_t kPairsInTurn[16] = {0, 2,  1, 3,  4,  6,  5,  7,
                                                          8, 10, 9, 11, 12, 14, 13, 15};

  static KVL_INLINE IntVec LoadTwice(const uint8_t* bytes) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
  }
  // A look-up reads six bits of a byte, of which the table ignores the highest. `firsts` are the
  // places of the first line among 16.
  KVL_INLINE IntVec Find(const std::byte* group, int line, int part, IntVec order,
                         uint64_t firsts) const {
    const IntVec words = LoadWords(group + part * kVecBytes);
    IntVec windows = ShuffleBytes(TurnWords(words, kLow * line), order);
    if constexpr (HasHighBit(kBits)) {
      firsts *= 0x0001000100010001u;
      const __mmask64 high = _pdep_u64(HighBits(group, line), firsts) |
                             _pdep_u64(HighBits(group, line + kHalf), ~firsts);
      windows = windows & SetWords(0x0f0f);
      windows = _mm512_mask_add_epi8(windows, high, windows, SetWords(0x1010));
    }
    return _mm512_permutexvar_epi8(windows, table);
  }
  static KVL_INLINE uint32_t HighBits(const std::byte* group, int line) {
    uint32_t bits;
    __builtin_memcpy(&bits, group + 64 + 4 * line, sizeof(bits));
    return bits;
  }
#else
  IntVec tables[2];

  KVL_INLINE SmallReader(const CodeSegment& segment, bool is_key) {
    const int8_t* bytes = segment.small;
    if (kHasByteDots) bytes = reinterpret_cast<const int8_t*>(segment.bytes);
    const int offset = kHasByteDots ? (is_key ? 0 : 128) : (is_key ? kSmallOffset : 0);
    const IntVec added = SetWords(static_cast<int16_t>(0x0101 * offset));
    tables[0] = AddBytes(LoadTable(bytes), added);
    tables[1] = AddBytes(LoadTable(bytes + 16), added);
  }

  // In every 128 bits the pairs of the one line, then those of the other.
  KVL_INLINE IntVec Pairs(const std::byte* group, int line, int part) const {
    return CodePair<kBits>(group, line, part).Find(tables[0], tables[1]);
  }
  // Two pairs of either line in turn.
  KVL_INLINE IntVec Quads(const std::byte* group, int line, int part) const {
    return ShuffleBytes(Pairs(group, line, part), LoadTable(kPairsInTurn));
  }

 private:
  // Pairs of the first eight bytes and of the others in turn.
  alignas(16) static constexpr int8_t kPairsInTurn[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                          4, 5, 12, 13, 6, 7, 14, 15};
#endif
};

// Calls f(reader) with the reader of a segment's codes as bytes.
template <bool kIsKey, typename F>
KVL_INLINE void WithSmallReader(const CodeSegment& segment, const F& f) {
  if constexpr (kMostByteBits > kSmallBits) {
    if (segment.bits == 4) return f(SmallReader<4>(segment, kIsKey));
  }
  switch (segment.bits) {
    case 1:
      return f(SmallReader<1>(segment, kIsKey));
    case 2:
      return f(SmallReader<2>(segment, kIsKey));
    default:
      return f(SmallReader<3>(segment, kIsKey));
  }
}

// How many pairs of channels of K, or of tokens of V, the two of a quad lie apart.
constexpr int KeyDistance(int bits) { return bits == 1 ? 2 : 1; }
constexpr int ValueDistance(int bits) { return LinesPerGroup(bits) / 2; }

// Writes the quads of K that groups of two pairs of channels each hold, whose lines are of the same
// pair.
template <typename Reader>
KVL_INLINE void ReadKeyGroups(const Reader& reader, const std::byte* codes, int n_groups,
                              int64_t ahead, uint8_t* to) {
  constexpr int kHalf = Reader::kHalf;
  for (int group = 0; group < n_groups; group += 2) {
    const std::byte* const second = codes + reader.kBytes;
    PrefetchGroup<Reader>(codes + ahead);
    PrefetchGroup<Reader>(second + ahead);
    Unroll<kHalf>([&](auto line) KVL_PART {
      Unroll<kLineParts>([&](auto part) KVL_PART {
        const IntVec a = reader.Pairs(codes, line.value, part.value);
        const IntVec b = reader.Pairs(second, line.value, part.value);
        uint8_t* const quads = to + line.value * 64 + kVecBytes * part.value;
        StoreWords(quads, MixLowerWords(a, b));
        StoreWords(quads + kHalf * 64, MixUpperWords(a, b));
      });
    });
    codes += 2 * reader.kBytes, to += kKeyQuadBytes;
  }
}

// Writes the quads of K or V of a segment to `to`, and fetches what lies `ahead` meanwhile.
template <bool kIsKey>
KVL_INLINE void ReadSmall(const CodeSegment& segment, const std::byte* block, int64_t ahead,
                          uint8_t* to) {
  WithSmallReader<kIsKey>(segment, [&](const auto& reader) KVL_PART {
    using Reader = std::remove_cvref_t<decltype(reader)>;
    constexpr int kLines = Reader::kLines, kHalf = kLines / 2;
    const std::byte* codes = block + segment.codes;
    const int columns = segment.n_channels / 16;  // V
    const int n_groups = 2 * segment.n_channels / kLines;
    if constexpr (kIsKey && kLines == 4) {
      return ReadKeyGroups(reader, codes, n_groups, ahead, to);
    }
    int column = 0;
    for (int group = 0; group < n_groups; ++group) {
      PrefetchGroup<Reader>(codes + ahead);
      Unroll<kHalf>([&](auto line) KVL_PART {
        // A line of K is a quarter of the tokens, one of V a pair of tokens.
        uint8_t* const quads = kIsKey ? to + line.value / 4 * kKeyQuadBytes + line.value % 4 * 64
                                      : to + column * kColumnBytes + line.value * 64;
        Unroll<kLineParts>([&](auto part) KVL_PART {
          StoreWords(quads + kVecBytes * part.value, reader.Quads(codes, line.value, part.value));
        });
      });
      codes += reader.kBytes;
      if constexpr (kIsKey) {
        to += kHalf / 4 * kKeyQuadBytes;
      } else if (++column == columns) {
        column = 0, to += kHalf * 64;
      }
    }
  });
}

// Columns of V of the quads of K of n_channels channels, whose pairs lie `distance` apart. Quads of
// V are four tokens that follow each other.
KVL_INLINE void KeyQuadsToValues(const uint8_t* quads, int n_channels, int distance,
                                 uint8_t* columns) {
  alignas(16) static constexpr int8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                    2, 6, 10, 14, 3, 7, 11, 15};
  const IntVec order = LoadTable(kOrder);
  constexpr int kBack = 256 - kSmallOffset;  // added to a byte it takes the offset off
  const IntVec offset = SetWords(static_cast<int16_t>(0x0101 * kBack));
  constexpr int kQuads = kVecBytes / 16;  // of tokens in a vector, and of channels that meet there
  for (int channel = 0; channel < n_channels; channel += 16, quads += 4 * kKeyQuadBytes) {
    uint8_t* const column = columns + channel / 16 * kColumnBytes;
    for (int t = 0; t < kBlockSize; t += 4 * kQuads) {
      IntVec x[4];
      Unroll<4>([&](auto q) KVL_PART {
        const IntVec bytes = LoadWords(quads + q.value * kKeyQuadBytes + 4 * t);
        x[q.value] = AddBytes(ShuffleBytes(bytes, order), offset);
      });
      if (distance != 1) {
        Unroll<2>([&](auto i) KVL_PART {
          const IntVec a = x[2 * i.value], b = x[2 * i.value + 1];
          x[2 * i.value] = MixLowerPairs(a, b);
          x[2 * i.value + 1] = MixUpperPairs(a, b);
        });
      }
      StoreTurnedQuarters(x, column + 16 * t);
    }
  }
}

// --- Weights. ---

// The nearest whole numbers of 32 floats times `per_unit`, which fit into bytes, with a sign or
// without one.
template <bool kIsSigned>
KVL_INLINE __m256i RoundToBytes(const float* x, float per_unit) {
  const __m256 scale = _mm256_set1_ps(per_unit);
  __m256i whole[4];
  Unroll<4>([&](auto i) KVL_PART {
    whole[i.value] = _mm256_cvtps_epi32(_mm256_loadu_ps(x + 8 * i.value) * scale);
  });
  // Four numbers of each vector in turn.
  const __m256i first = _mm256_packs_epi32(whole[0], whole[1]);
  const __m256i last = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i mixed =
      kIsSigned ? _mm256_packs_epi16(first, last) : _mm256_packus_epi16(first, last);
  return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sorts the 16 pairs of bytes of a vector into quads of pairs `distance` apart.
KVL_INLINE __m256i SortIntoQuads(__m256i x, int distance) {
  if (distance == 1) return x;
  if (distance == 2) {
    constexpr int kTurned = _MM_SHUFFLE(3, 1, 2, 0);
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, kTurned), kTurned);
  }
  if (distance == 8) x = _mm256_permute4x64_epi64(x, _MM_SHUFFLE(3, 1, 2, 0));
  const __m256i in_turn = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0,
                                           1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  return _mm256_shuffle_epi8(x, in_turn);
}

// Queries of a panel: a number of channel n_wide + c is bytes[r][c] times units[r], in the order of
// quads, with zeros behind them (kByteTileStep). constants[r] takes kSmallOffset out of the sums.
struct SmallQueries {
  alignas(64) int8_t bytes[kMaxCodeRows][kMaxRank];
  float units[kMaxCodeRows];
  float constants[kMaxCodeRows];
};

// `q` has room for 16 floats behind the last row.
KVL_INLINE void RoundSmallQueries(const FloatRows& q, int n_rows, const PackedSideView& side,
                                  int n_wide, SmallQueries* to) {
  const auto for_each_segment = [&](const auto& f) KVL_PART {
    for (int i = 0; i < side.n_segments; ++i) {
      const CodeSegment& segment = side.segments[i];
      if (segment.first >= n_wide) f(segment, StepOf(side, segment));
    }
  };
  for (int r = 0; r < n_rows; ++r) {
    Vec top = Zero(), total = Zero();
    for_each_segment([&](const CodeSegment& segment, float step) KVL_PART {
      for (int c = segment.first; c < segment.first + segment.n_channels; c += kLanes) {
        const Vec x = Load(q[r] + c);
        top = Larger(top, Absolute(x) * Set1(step)), total = total + x;
      }
    });
    const float largest = MaxOfLanes(top), nothing = 0 * SumOfLanes(total);  // or NaN
    const float per_unit = largest > 0 ? kLargestQueryByte / largest : 0;
    const int n_small = side.n_coded - n_wide;
    const int n_tiled = (n_small + kByteTileStep - 1) / kByteTileStep * kByteTileStep;
    __builtin_memset(to->bytes[r] + n_small, 0, n_tiled - n_small);
    int sum = 0;
    for_each_segment([&](const CodeSegment& segment, float step) KVL_PART {
      for (int c = segment.first; c < segment.first + segment.n_channels; c += 16) {
        const __m256i bytes =
            SortIntoQuads(RoundToBytes<true>(q[r] + c, per_unit * step), KeyDistance(segment.bits));
        int8_t* const sorted = to->bytes[r] + (c - n_wide);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sorted), _mm256_castsi256_si128(bytes));
        for (int j = 0; j < 16; ++j) sum += sorted[j];
      }
    });
    to->units[r] = largest / kLargestQueryByte + nothing;
    to->constants[r] = static_cast<float>(-kSmallOffset * sum) * to->units[r];
  }
}

// The orders of quads of V: of 1 bit, of 2 and 3 bits, and of 4 bits. Bytes of an order count
// the same step.
constexpr int kValueOrders = kHasByteDots ? 3 : 2;
constexpr int ValueOrderOf(int bits) { return bits == 1 ? 0 : bits <= 3 ? 1 : 2; }

// Neighbouring channels of V whose quads have one order.
struct ValueRange {
  int first = 0, n_channels = 0;
  float step = 1;
};

KVL_INLINE void FindValueRanges(const PackedSideView& side, int n_wide,
                                ValueRange (&ranges)[kValueOrders]) {
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    if (segment.first < n_wide) continue;
    ValueRange& range = ranges[ValueOrderOf(segment.bits)];
    if (range.n_channels == 0) range = {segment.first, 0, StepOf(side, segment)};
    range.n_channels += segment.n_channels;
  }
}

// Probabilities times the scales of their tokens: bytes times units[r], sorted into the quads of
// every order that a side has, or in the order of tokens.
template <int kRows>
struct SmallProbs {
  alignas(64) uint8_t of[kValueOrders][kRows][kBlockSize];
  float units[kRows];
};

// Those of kRows rows become rows of `to` from `first` on.
template <int kRows, int kMost>
KVL_INLINE void RoundSmallProbs(const FloatRows& probs, const WeightSizes<kRows>& sizes,
                                const ValueRange (&ranges)[kValueOrders], bool sorts, int first,
                                SmallProbs<kMost>* to) {
  constexpr int kDistances[] = {ValueDistance(1), ValueDistance(2), ValueDistance(4)};
  Unroll<kRows>([&](auto r) KVL_PART {
    const float largest = MaxOfLanes(sizes.top[r.value]);
    const float per_unit = largest > 0 ? kLargestProbByte / largest : 0;
    to->units[first + r.value] = largest / kLargestProbByte + 0 * SumOfLanes(sizes.sum[r.value]);
    for (int t = 0; t < kBlockSize; t += 32) {
      const __m256i bytes = RoundToBytes<false>(probs[r.value] + t, per_unit);
      Unroll<kValueOrders>([&](auto order) KVL_PART {
        if (ranges[order.value].n_channels == 0) return;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to->of[order.value][first + r.value] + t),
                           SortIntoQuads(bytes, sorts ? kDistances[order.value] : 1));
      });
    }
  });
}

// --- Dots. ---

// Adds the dots of kVecs vectors of codes with the quads of weights of all rows, which lie `stride`
// bytes apart. at(quad, v) is where the bytes of vector v lie; they have no sign where they are
// keys.
template <bool kIsKey, int kRows, int kVecs, typename At>
KVL_INLINE DotSums<kRows, kVecs> DotQuads(int n_quads, const void* weights, int stride,
                                          const At& at) {
  DotSums<kRows, kVecs> sums;
  sums.Clear();
  const auto* quads = static_cast<const std::byte*>(weights);
  for (int quad = 0; quad < n_quads; quad += 2, quads += 8) {
    IntVec first[kVecs], second[kVecs];
    Unroll<kVecs>([&](auto v) KVL_PART {
      first[v.value] = LoadWords(at(quad, v.value));
      second[v.value] = LoadWords(at(quad + 1, v.value));
    });
    Unroll<kRows>([&](auto r) KVL_PART {
      const IntVec a = BroadcastFour(quads + r.value * stride);
      const IntVec b = BroadcastFour(quads + r.value * stride + 4);
      Unroll<kVecs>([&](auto v) KVL_PART {
        IntVec& sum = sums.of[r.value][v.value];
        if constexpr (kIsKey) {
          sum = AddByteDots(sum, first[v.value], a, second[v.value], b);
        } else {
          sum = AddByteDots(sum, a, first[v.value], b, second[v.value]);
        }
      });
    });
  }
  return sums;
}

// Sums that tiles have stored, `stride` apart from row to row.
template <int kRows, int kVecs>
KVL_INLINE DotSums<kRows, kVecs> LoadSums(const int32_t* sums, int stride) {
  DotSums<kRows, kVecs> loaded;
  Unroll<kRows>([&](auto r) KVL_PART {
    Unroll<kVecs>([&](auto v) KVL_PART {
      loaded.of[r.value][v.value] = LoadWords(sums + r.value * stride + kLanes * v.value);
    });
  });
  return loaded;
}

// Calls use(token, sums) with the sums of n_channels channels for all tokens.
template <int kRows, typename F>
KVL_INLINE void DotSmallTokens(const uint8_t* quads, int n_channels, const int8_t* weights,
                               const F& use) {
  constexpr int kVecs = DotVecs(kRows, kBlockSize / kLanes);
  for (int token = 0; token < kBlockSize; token += kVecs * kLanes) {
    use(token, DotQuads<true, kRows, kVecs>(
                   n_channels / 4, weights, kMaxRank, [&](int quad, int v) KVL_PART {
                     return quads + quad * kKeyQuadBytes + 4 * (token + v * kLanes);
                   }));
  }
}

// Calls use(channel, sums) with the sums over all tokens of n_channels channels.
template <int kRows, int kVecs = DotVecs(kRows, 4 * 16 / kLanes), typename F>
KVL_INLINE void DotSmallChannels(const uint8_t* columns, const uint8_t* weights, int begin,
                                 int n_channels, const F& use) {
  constexpr int kColumnVecs = 16 / kLanes;
  int channel = begin;
  for (; channel + kVecs * kLanes <= n_channels; channel += kVecs * kLanes) {
    const uint8_t* first = columns + channel / 16 * kColumnBytes;
    use(channel, DotQuads<false, kRows, kVecs>(kBlockSize / 4, weights, kBlockSize,
                                               [&](int quad, int v) KVL_PART {
                                                 return first + v / kColumnVecs * kColumnBytes +
                                                        64 * quad + v % kColumnVecs * 4 * kLanes;
                                               }));
  }
  if constexpr (kVecs > kColumnVecs) {
    if (channel < n_channels) {
      DotSmallChannels<kRows, kVecs / 2>(columns, weights, channel, n_channels, use);
    }
  }
}

}  // namespace
}  // namespace kvlathe
