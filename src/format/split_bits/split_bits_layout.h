// The channels of this layout differ in bits (bit_split.h). `lathe` with a ratio stores
// rows in it. Rows come in units of each channel's deviation, and codes are those of unit_codes.h.
//
//   block of a head   | K: 8 bits | 5 bits | ... | 1 bit | V: 8 bits | ... | 1 bit |
//                     | scales of tokens: K | V | factors |
//
// Channels that have the same bits lie together, as in a block that has no other channels.
// Where the codec says so each token has a scale for K and one for V, a byte each. There are no
// exact entries. With has_one_side the codes and scales of V are missing.
#pragma once

#include <bit>
#include <cstdint>

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"
#include "format/split_bits/bit_split.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

struct SplitBitsCodec {
  // What all numbers of sealed blocks count in.
  StoredUnit unit = StoredUnit::kChannel;
  // Whether blocks hold 8-bit codes in place of rows until they are sealed (coded_rows.h).
  bool codes_open_rows = false;
  // Whether the entries that are sealed where the prompt ends fall into classes of different bits
  // (kv/seal/seal_schedule.h). Nothing is repaired then.
  bool has_classes = false;
  // Whether a row holds a key and its value (BlockShape::has_one_side). The bits of heads are then
  // those of EntryBits::k alone.
  bool has_one_side = false;

  friend bool operator==(const SplitBitsCodec&, const SplitBitsCodec&) = default;
};

constexpr CodecFacts FactsOf(const SplitBitsCodec& codec) {
  const bool is_token = codec.unit == StoredUnit::kToken;
  const PackedSide side = {.bits = 0,
                           .sharing = is_token ? ScaleSharing::kToken : ScaleSharing::kNone,
                           .is_symmetric = true};
  return {.k = side,
          .v = side,
          .most_channels = kMaxRowRank,
          .keys_before_rope = false,
          .codes_open_rows = codec.codes_open_rows,
          .has_classes = codec.has_classes,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = codec.has_one_side};
}

constexpr int64_t SplitCodeBytes(const BitSplit& bits) {
  return int64_t{kBlockSize} * bits.bits_per_token() / 8;
}

// The byte of a token's scale holds the upper bits of a float: 4 bits of an exponent from -11 to 4,
// and the highest 4 bits of the mantissa, so that every byte gives a finite, positive scale. A code
// that stands for v in the unit of its token is read as v * scale. Most scales of tokens lie
// between 1/4 and 4, but steps of 1/32 in half the range would lower the squared error of codes by
// only 1 to 2% (rows of SmolLM2-135M), because codes are made for the scale as it is rounded.
inline constexpr int kScaleShift = 19;
inline constexpr uint32_t kScaleBase = uint32_t{127 - 11} << 23;
constexpr float ScaleOfByte(uint8_t byte) {
  return std::bit_cast<float>((uint32_t{byte} << kScaleShift) + kScaleBase);
}

}  // namespace kvlathe
