// The layout of a cache whose channels differ in bits (bit_split.h). `lathe` with a ratio stores
// rows in it. Rows come in units of each channel's deviation, and codes are those of unit_codes.h.
//
//   block of a head   | K: 8 bits | 5 bits | ... | 1 bit | V: 8 bits | ... | 1 bit |
//                     | scales of tokens: K | V | factors | offsets of K | scales of K |
//
// Channels that have the same bits lie together, as in a block that has no other channels.
// Either each token has a scale for K and one for V, a byte each (SplitBitsCodec), or the first
// k_bits.scaled channels of K have an offset and a scale in each block, a byte each: first all
// offsets, then all scales. There are no exact entries.
#pragma once

#include <bit>
#include <cstdint>

#include "format/codes/code_side.h"
#include "format/rows/block_layout.h"
#include "format/split_bits/bit_split.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

struct SplitBitsCodec {
  // What all numbers of sealed blocks count in. With kToken no channel has scales in each block.
  StoredUnit unit = StoredUnit::kChannel;

  friend bool operator==(const SplitBitsCodec&, const SplitBitsCodec&) = default;
};

constexpr PackedSide KeySideOf(const SplitBitsCodec& codec) {
  const bool is_token = codec.unit == StoredUnit::kToken;
  return {.bits = 0,
          .sharing = is_token ? ScaleSharing::kToken : ScaleSharing::kNone,
          .is_symmetric = true};
}
constexpr PackedSide ValueSideOf(const SplitBitsCodec& codec) { return KeySideOf(codec); }

constexpr int64_t SplitCodeBytes(const BitSplit& bits) {
  return int64_t{kBlockSize} * bits.bits_per_token() / 8;
}

// The offset and the scale of a channel in a block count in units of the channel's deviation: a
// code that stands for v is read as v * scale + offset. Every byte gives a finite offset and a
// finite, positive scale.
inline constexpr float kOffsetStep = 1.0f / 32;  // byte 128 is 0: from -4 up to just below 4
constexpr float OffsetOfByte(uint8_t byte) {
  return static_cast<float>(int{byte} - 128) * kOffsetStep;
}
// The byte of a scale, of a channel in a block or of a token, holds the upper bits of a float: 4
// bits of an exponent from -11 to 4, and the highest 4 bits of the mantissa. A code that stands for
// v in the unit of its token is read as v * scale. Most scales of tokens lie between 1/4 and 4, but
// steps of 1/32 in half the range would lower the squared error of codes by only 1 to 2% (rows of
// SmolLM2-135M), because codes are made for the scale as it is rounded.
inline constexpr int kScaleShift = 19;
inline constexpr uint32_t kScaleBase = uint32_t{127 - 11} << 23;
constexpr float ScaleOfByte(uint8_t byte) {
  return std::bit_cast<float>((uint32_t{byte} << kScaleShift) + kScaleBase);
}

}  // namespace kvlathe
