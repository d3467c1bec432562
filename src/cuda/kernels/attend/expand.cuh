// Blocks of any codec as BF16 in shared memory, in the words of tile.cuh. All threads of a block
// call these functions together.
#pragma once

#include <cstdint>

#include "cuda/kernels/attend/expand.h"
#include "cuda/kernels/attend/repairs.cuh"
#include "cuda/kernels/attend/tile.cuh"
#include "format/codes/code_lines.h"
#include "format/split_bits/split_bits_layout.h"

namespace kvlathe::cuda {

// The memory in which a block is expanded.
struct TileMemory {
  uint32_t* k;              // [rank_k / 2][kKeyStride]
  uint32_t* v;              // [kBlockSize / 2][ValueStride(rank_v)]
  float* k_scales;          // [kBlockSize] of tokens, where the run's windows have them
  float* v_scales;          // likewise
  const uint16_t* windows;  // [5][64] of the run's unit, WindowTables
};

// Calls f(group, line, i, first, second) for words 2 i and 2 i + 1 of all lines of `n_groups`
// groups of codes (codes/code_lines.h). Of windows, codes come with the bits beside them.
template <int kBits, bool kWindows, typename F>
KVL_DEVICE void ForCodes(const std::byte* codes, int n_groups, const F& f) {
  using namespace simt;
  constexpr int kWordsOfGroup = 16;  // of 32 bits, behind which high bits may lie
  for (int at = ThreadIdx(); at < n_groups * kWordsOfGroup; at += BlockDim()) {
    const int group = at / kWordsOfGroup, i = at % kWordsOfGroup;
    const std::byte* const from = codes + int64_t{group} * GroupBytes(kBits);
    const uint32_t pair = LoadWord(from + 4 * i);
    if constexpr (kBits == 8) {
      const int line = i / 2 % 2, first = i / 4 * 4 + i % 2 * 2;
      f(group, line, first, pair & 0xff, pair >> 8 & 0xff);
      f(group, line, first + 1, pair >> 16 & 0xff, pair >> 24);
    } else {
      constexpr int kLow = LowBits(kBits), kTaken = kWindows ? (HasHighBit(kBits) ? 4 : 5) : kLow;
      constexpr uint32_t kMask = (1u << kTaken) - 1;
      // Twice each, so that what wraps round the end of a word is there.
      const uint32_t even = PermuteBytes(pair, 0, 0x1010), odd = PermuteBytes(pair, 0, 0x3232);
#pragma unroll
      for (int line = 0; line < LinesPerGroup(kBits); ++line) {
        uint32_t first = even >> (kLow * line) & kMask, second = odd >> (kLow * line) & kMask;
        if constexpr (HasHighBit(kBits)) {
          const uint32_t high = LoadWord(from + 64 + 4 * line) >> (2 * i);
          first |= (high & 1) << kTaken;
          second |= (high >> 1 & 1) << kTaken;
        }
        f(group, line, i, first, second);
      }
    }
  }
}

// The place of two codes in a side: a token and a pair of channels, or a pair of tokens and a
// channel.
struct CodePairPlace {
  int token, channel;  // the first ones
};
template <bool kIsKey>
KVL_DEVICE CodePairPlace PlaceOfPair(const ExpandSegment& segment, int lines_per_group, int group,
                                     int line, int i) {
  if constexpr (kIsKey) {
    const int of_side = group * lines_per_group + line;
    return {of_side % 4 * 16 + i, segment.first + of_side / 4 * 2};
  }
  const int sixteens = segment.n_channels / 16;
  return {(group / sixteens * lines_per_group + line) * 2,
          segment.first + group % sixteens * 16 + i};
}
template <bool kIsKey>
KVL_DEVICE uint32_t& WordAt(const WordPlaces& to, const CodePairPlace& at) {
  return kIsKey ? to.words[at.channel / 2 * to.stride + at.token]
                : to.words[at.token / 2 * to.stride + at.channel];
}

// Writes value(place, first code, second code), a word, for all codes of a segment.
template <bool kIsKey, int kBits, bool kWindows, typename Value>
KVL_DEVICE void ExpandCodes(const ExpandSegment& segment, const std::byte* block,
                            const WordPlaces& to, const Value& value) {
  constexpr int kLines = LinesPerGroup(kBits);
  ForCodes<kBits, kWindows>(block + segment.codes, 2 * segment.n_channels / kLines,
                            [&](int group, int line, int i, uint32_t first, uint32_t second) {
                              const CodePairPlace at =
                                  PlaceOfPair<kIsKey>(segment, kLines, group, line, i);
                              WordAt<kIsKey>(to, at) = value(at, first, second);
                            });
}

// --- Numbers of a fixed width. ---

KVL_DEVICE float LowerF16(uint32_t pair) { return simt::FloatOfF16(pair & 0xffff); }
KVL_DEVICE float UpperF16(uint32_t pair) { return simt::FloatOfF16(pair >> 16); }

struct CodeScale {
  float scale, minimum;
};

// The scale of one code of a side whose scales are those of tokens.
KVL_DEVICE CodeScale TokenScale(const ExpandSide& side, const uint16_t* scales, int token,
                                int channel) {
  const int parts = side.is_symmetric ? 1 : 2;
  const uint16_t* const from = scales + channel / side.group * parts * kBlockSize + token;
  const float scale = simt::FloatOfF16(from[0]);
  if (!side.is_symmetric) return {scale, simt::FloatOfF16(from[kBlockSize])};
  return {scale, side.segments[0].bits == 4 ? -8 * scale : 0};
}

// The word of two codes.
template <bool kIsKey>
struct NumberValue {
  const ExpandSide& side;
  const uint16_t* scales;  // of the block's tokens, or of its first group of tokens
  int first_token;         // of the block, in its run

  KVL_DEVICE float NumberOf(uint32_t code) const {
    if (side.kind == CodeKind::kTable) return static_cast<float>(side.numbers[code]);
    if (side.kind == CodeKind::kCentroids) return side.centroids[code];
    const bool is_signed = side.is_symmetric && side.segments[0].bits == 8;
    return static_cast<float>(is_signed ? static_cast<int>(static_cast<int8_t>(code))
                                        : static_cast<int>(code));
  }
  KVL_DEVICE CodeScale ScaleOf(int token, int channel) const {
    if (side.kind == CodeKind::kTable) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(scales);
      const uint32_t byte = bytes[channel / side.group * kBlockSize + token];
      return {std::bit_cast<float>(byte << 23) * side.unit, 0};
    }
    if (kIsKey && side.kind == CodeKind::kCentroids) {
      return {side.model_scales[channel], side.model_scales[side.rank + channel]};
    }
    if (!side.is_per_channel) return TokenScale(side, scales, token, channel);
    const int group = (first_token + token) / side.group;
    const uint16_t* const from = side.shared_scales + int64_t{2} * group * side.rank + channel;
    return {simt::FloatOfF16(from[0]), simt::FloatOfF16(from[side.rank])};
  }
  KVL_DEVICE uint32_t operator()(const CodePairPlace& at, uint32_t first, uint32_t second) const {
    const CodeScale a = ScaleOf(at.token, at.channel);
    const CodeScale b = ScaleOf(at.token + (kIsKey ? 0 : 1), at.channel + (kIsKey ? 1 : 0));
    return simt::PackBf16(NumberOf(first) * a.scale + a.minimum,
                          NumberOf(second) * b.scale + b.minimum);
  }
};

template <bool kIsKey>
KVL_DEVICE void ExpandNumbers(const ExpandSide& side, const std::byte* block, int block_idx,
                              const WordPlaces& to) {
  const int parts = side.is_symmetric ? 1 : 2;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(block + side.scales);
  if (side.shared_scales != nullptr && !side.is_per_channel) {
    scales = side.shared_scales + int64_t{parts} * kBlockSize * block_idx;
  }
  const NumberValue<kIsKey> value = {side, scales, block_idx * kBlockSize};
  const ExpandSegment& segment = side.segments[0];
  switch (segment.bits) {
    case 2:
      return ExpandCodes<kIsKey, 2, false>(segment, block, to, value);
    case 3:
      return ExpandCodes<kIsKey, 3, false>(segment, block, to, value);
    case 4:
      return ExpandCodes<kIsKey, 4, false>(segment, block, to, value);
    default:
      return ExpandCodes<kIsKey, 8, false>(segment, block, to, value);
  }
}

// --- Windows of codes. ---

// What windows of 1 to 5 bits stand for.
struct WindowValue {
  const uint16_t* values;  // UnitTable, of which the last 32 are those with the high bit
  int high_shift;          // from the bit of a window to that of an entry: 1 with a high bit

  KVL_DEVICE uint32_t At(uint32_t window) const {
    return values[window + (window & 16) * static_cast<uint32_t>(high_shift)];
  }
  KVL_DEVICE uint32_t operator()(const CodePairPlace& /*at*/, uint32_t first,
                                 uint32_t second) const {
    return At(first) | At(second) << 16;
  }
};

template <bool kIsKey, int kBits>
KVL_DEVICE void ExpandWindows(const ExpandSegment& segment, const std::byte* block,
                              const TileMemory& memory, const WordPlaces& to) {
  const WindowValue value = {memory.windows + (kBits - 1) * 64, HasHighBit(kBits) ? 1 : 0};
  ExpandCodes<kIsKey, kBits, true>(segment, block, to, value);
}

// Bytes are exact in Bf16: steps of kUnitStep from -128 on.
struct ByteValue {
  KVL_DEVICE static float Of(uint32_t code) { return (static_cast<float>(code) - 128) * kUnitStep; }
  KVL_DEVICE uint32_t operator()(const CodePairPlace& /*at*/, uint32_t first,
                                 uint32_t second) const {
    return simt::PackBf16(Of(first), Of(second));
  }
};

template <bool kIsKey>
KVL_DEVICE void ExpandSplitBits(const ExpandSide& side, const std::byte* block,
                                const TileMemory& memory, const WordPlaces& to) {
  using namespace simt;
  int n_coded = 0;
  for (int n = 0; n < side.n_segments; ++n) {
    const ExpandSegment& segment = side.segments[n];
    n_coded = segment.first + segment.n_channels;
    switch (segment.bits) {
      case 1:
        ExpandWindows<kIsKey, 1>(segment, block, memory, to);
        break;
      case 2:
        ExpandWindows<kIsKey, 2>(segment, block, memory, to);
        break;
      case 3:
        ExpandWindows<kIsKey, 3>(segment, block, memory, to);
        break;
      case 4:
        ExpandWindows<kIsKey, 4>(segment, block, memory, to);
        break;
      case 5:
        ExpandWindows<kIsKey, 5>(segment, block, memory, to);
        break;
      default:
        ExpandCodes<kIsKey, 8, false>(segment, block, to, ByteValue{});
    }
  }
  // Channels without codes count as zero.
  const int n_words = (side.rank - n_coded) * (kBlockSize / 2);
  for (int at = ThreadIdx(); at < n_words; at += BlockDim()) {
    const int slot = at % kBlockSize, more = at / kBlockSize;  // of K: a token and pairs on
    if constexpr (kIsKey) {
      to.words[(n_coded / 2 + more) * to.stride + slot] = 0;
    } else {
      const int n_rest = side.rank - n_coded;
      to.words[at / n_rest * to.stride + n_coded + at % n_rest] = 0;
    }
  }
  if (!side.has_token_scales) return;
  float* const scales = kIsKey ? memory.k_scales : memory.v_scales;
  for (int token = ThreadIdx(); token < kBlockSize; token += BlockDim()) {
    scales[token] = ScaleOfTokenByte(block[side.scales + token]);
  }
}

// --- Blocks. ---

// K or V of block `block_idx` of its run.
template <bool kIsKey>
KVL_DEVICE void ExpandBlock(const ExpandRun& run, const std::byte* block, int block_idx,
                            const TileMemory& memory) {
  const ExpandSide& side = kIsKey ? run.k : run.v;
  const WordPlaces to =
      kIsKey ? WordPlaces{memory.k, kKeyStride} : WordPlaces{memory.v, ValueStride(side.rank)};
  if (side.kind == CodeKind::kWindows) {
    ExpandSplitBits<kIsKey>(side, block, memory, to);
  } else {
    ExpandNumbers<kIsKey>(side, block, block_idx, to);
  }
  RepairSide<kIsKey>(run, block, block_idx, to);
}

// Makes V of K, which is there.
KVL_DEVICE void CopyKeysToValues(const ExpandSide& side, const TileMemory& memory) {
  using namespace simt;
  for (int at = ThreadIdx(); at < side.rank * (kBlockSize / 2); at += BlockDim()) {
    const int pair = at % (kBlockSize / 2), r = at / (kBlockSize / 2);
    const uint32_t* const tokens = memory.k + r / 2 * kKeyStride + 2 * pair;
    memory.v[pair * ValueStride(side.rank) + r] =
        PermuteBytes(tokens[0], tokens[1], r % 2 == 0 ? 0x5410 : 0x7632);
  }
  if (!side.has_token_scales) return;
  for (int token = ThreadIdx(); token < kBlockSize; token += BlockDim()) {
    memory.v_scales[token] = memory.k_scales[token];
  }
}

// Copies K of a plain block. What is copied is there behind WaitCopies and a barrier.
KVL_DEVICE void CopyPlainKeys(const std::byte* block, int rank, uint32_t* k) {
  using namespace simt;
  constexpr int kPieces = kBlockSize / 4;  // of 16 bytes, of a pair of channels
  for (int at = ThreadIdx(); at < rank / 2 * kPieces; at += BlockDim()) {
    CopyAsync16(k + at / kPieces * kKeyStride + at % kPieces * 4, block + int64_t{16} * at);
  }
}

// Copies V of a plain block of which entries [0, n_valid) are defined; the others become zeros.
KVL_DEVICE void CopyPlainValues(const std::byte* values, int rank, int n_valid, uint32_t* v) {
  using namespace simt;
  const int pieces = rank / 4, stride = ValueStride(rank);
  for (int at = ThreadIdx(); at < n_valid / 2 * pieces; at += BlockDim()) {
    CopyAsync16(v + at / pieces * stride + at % pieces * 4, values + int64_t{16} * at);
  }
  for (int pair = n_valid / 2; pair < kBlockSize / 2; ++pair) {
    for (int r = ThreadIdx(); r < rank; r += BlockDim()) {
      const bool has_first = 2 * pair < n_valid;
      v[pair * stride + r] =
          has_first ? LoadWord(values + int64_t{4} * (pair * rank + r)) & 0xffff : 0;
    }
  }
}

}  // namespace kvlathe::cuda
