// Dots of bytes with rows of weights, over vectors of lanes.h, for the channels whose codes have 1
// to kSmallBits bits: codes become bytes of 7 bits, and so do weights. Two products of a channel's
// or token's byte with its weight are added in 16 bits and four of those sums before they are
// widened, which takes five instructions where words of 16 bits (code_dots_lanes.h) take eight.
//
// The error of a weight is at most half of a 63rd (queries) or 127th (probabilities) of the largest
// of its row, and that of a code half of SmallStep. Where the largest query is four times their
// deviation, each loses less than a fiftieth of what codes of kSmallBits bits lose.
//
// Bytes lie in quads: of K [quad of channels][token][4], and of V in columns of 16 channels,
// [column][quad of tokens][16][4]. A quad has the channels, or tokens, that one look-up finds: two
// pairs that lie `distance` pairs apart (SmallReader). Weights are laid out so too.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/code_dots_lanes.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/lanes.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kKeyQuadBytes = 4 * kBlockSize;
constexpr int kColumnBytes = 16 * kBlockSize;
// Queries are as large as codes, so that four of their products fit into 16 bits; the codes of K
// are stored plus kSmallOffset, without a sign. Probabilities have no sign, so codes of V keep
// theirs.
constexpr int kSmallOffset = kLargestSmall;
constexpr int kLargestQueryByte = 63;
constexpr int kLargestProbByte = 127;
static_assert(4 * 2 * kLargestSmall * kLargestQueryByte < 32768);
static_assert(4 * kLargestSmall * kLargestProbByte < 32768);

// Reads codes of 1 to kSmallBits bits as bytes, four channels of 8 tokens or the other way round at
// a time: those of lines `line` and `line` + kHalf of a group.
template <int kBits>
struct SmallReader : CodeGroup<kBits> {
  IntVec tables[2];

  KVL_INLINE SmallReader(const int8_t* bytes, int offset) {
    const IntVec added = SetWords(static_cast<int16_t>(0x0101 * offset));
    tables[0] = AddBytes(LoadTable(bytes), added);
    tables[1] = AddBytes(LoadTable(bytes + 16), added);
  }

  KVL_INLINE IntVec Quads(const std::byte* group, int line, int part) const {
    const CodePair<kBits> pair(group, line, part);
    return ShuffleBytes(pair.Find(tables[0], tables[1]), LoadTable(kPairsInTurn));
  }

 private:
  // Pairs of the first eight bytes and of the others in turn.
  alignas(16) static constexpr int8_t kPairsInTurn[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                          4, 5, 12, 13, 6, 7, 14, 15};
};

// Calls f(reader) with the reader of a segment's codes as bytes plus `offset`.
template <typename F>
KVL_INLINE void WithSmallReader(const CodeSegment& segment, int offset, const F& f) {
  switch (segment.bits) {
    case 1:
      return f(SmallReader<1>(segment.small, offset));
    case 2:
      return f(SmallReader<2>(segment.small, offset));
    default:
      return f(SmallReader<3>(segment.small, offset));
  }
}

// How many pairs of channels of K, or of tokens of V, the two of a quad lie apart.
constexpr int KeyDistance(int bits) { return bits == 1 ? 2 : 1; }
constexpr int ValueDistance(int bits) { return bits == 1 ? 8 : 4; }

// Writes the quads of K or V of a segment to `to`, and fetches what lies `ahead` meanwhile.
template <bool kIsKey>
KVL_INLINE void ReadSmall(const CodeSegment& segment, const std::byte* block, int64_t ahead,
                          uint8_t* to) {
  WithSmallReader(segment, kIsKey ? kSmallOffset : 0, [&](const auto& reader) KVL_PART {
    constexpr int kLines = std::remove_cvref_t<decltype(reader)>::kLines, kHalf = kLines / 2;
    const std::byte* codes = block + segment.codes;
    const int columns = segment.n_channels / 16;  // V
    int column = 0;
    for (int group = 0; group < 2 * segment.n_channels / kLines; ++group) {
      PrefetchLine(codes + ahead);
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

// --- Weights. ---

// The nearest whole numbers of 32 floats times `per_unit`, which fit into bytes.
KVL_INLINE __m256i RoundToBytes(const float* x, float per_unit) {
  const __m256 scale = _mm256_set1_ps(per_unit);
  __m256i whole[4];
  Unroll<4>([&](auto i) KVL_PART {
    whole[i.value] = _mm256_cvtps_epi32(_mm256_loadu_ps(x + 8 * i.value) * scale);
  });
  // Four numbers of each vector in turn.
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                           _mm256_packs_epi32(whole[2], whole[3]));
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
// quads. constants[r] takes kSmallOffset out of the sums.
struct SmallQueries {
  alignas(64) int8_t bytes[kMaxCodeRows][kMaxRank];
  float units[kMaxCodeRows];
  float constants[kMaxCodeRows];
};

// `q` has room for 16 floats behind the last row.
KVL_INLINE void RoundSmallQueries(const FloatRows& q, int n_rows, const PackedSideView& side,
                                  int n_wide, SmallQueries* to) {
  for (int r = 0; r < n_rows; ++r) {
    Vec top = Zero(), total = Zero();
    for (int c = n_wide; c < side.n_coded; c += kLanes) {
      top = Larger(top, Absolute(Load(q[r] + c))), total = total + Load(q[r] + c);
    }
    const float largest = MaxOfLanes(top), nothing = 0 * SumOfLanes(total);  // or NaN
    int sum = 0;
    for (int i = 0; i < side.n_segments; ++i) {
      const CodeSegment& segment = side.segments[i];
      if (segment.first < n_wide) continue;
      for (int c = segment.first; c < segment.first + segment.n_channels; c += 16) {
        const __m256i bytes =
            SortIntoQuads(RoundToBytes(q[r] + c, largest > 0 ? kLargestQueryByte / largest : 0),
                          KeyDistance(segment.bits));
        int8_t* const sorted = to->bytes[r] + (c - n_wide);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sorted), _mm256_castsi256_si128(bytes));
        for (int j = 0; j < 16; ++j) sum += sorted[j];
      }
    }
    to->units[r] = largest / kLargestQueryByte * side.small_step + nothing;
    to->constants[r] = static_cast<float>(-kSmallOffset * sum) * to->units[r];
  }
}

// Probabilities times the scales of their tokens: bytes times units[r], sorted into the quads of
// both distances of V.
template <int kRows>
struct SmallProbs {
  alignas(64) uint8_t of_far[kRows][kBlockSize];   // of 1 bit
  alignas(64) uint8_t of_near[kRows][kBlockSize];  // of 2 and 3 bits
  float units[kRows];
};

template <int kRows>
KVL_INLINE void RoundSmallProbs(const FloatRows& probs, const WeightSizes<kRows>& sizes,
                                float small_step, SmallProbs<kRows>* to) {
  Unroll<kRows>([&](auto r) KVL_PART {
    const float largest = MaxOfLanes(sizes.top[r.value]);
    const float per_unit = largest > 0 ? kLargestProbByte / largest : 0;
    to->units[r.value] =
        largest / kLargestProbByte * small_step + 0 * SumOfLanes(sizes.sum[r.value]);
    for (int t = 0; t < kBlockSize; t += 32) {
      const __m256i bytes = RoundToBytes(probs[r.value] + t, per_unit);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to->of_far[r.value] + t),
                         SortIntoQuads(bytes, ValueDistance(1)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to->of_near[r.value] + t),
                         SortIntoQuads(bytes, ValueDistance(2)));
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
