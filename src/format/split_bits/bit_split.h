// A bit split says how many channels of a row have codes of how many bits, where these differ
// (split_bits_layout.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvlathe {

// The first channels[0] channels have codes of kSplitBits[0] bits, the next channels[1] codes of
// kSplitBits[1], and so on.
inline constexpr std::array<int, 6> kSplitBits = {8, 5, 4, 3, 2, 1};
struct BitSplit {
  std::array<int, kSplitBits.size()> channels = {};  // multiples of 16

  constexpr int n_channels() const {
    int n = 0;
    for (const int c : channels) n += c;
    return n;
  }
  constexpr int bits_per_token() const {
    int n = 0;
    for (size_t i = 0; i < channels.size(); ++i) n += channels[i] * kSplitBits[i];
    return n;
  }
  friend bool operator==(const BitSplit&, const BitSplit&) = default;
};

// Where entries are sorted by the attention that they got (kv/seal/seal_schedule.h, Classes), those
// with the most of it have more bits than others, and those with the least have fewer. Entries of
// kPressed were of kMiddle until memory was short, and were sealed again in fewer bits
// (SealPlan::has_pressed_runs).
enum class EntryClass : uint8_t { kMiddle, kMost, kLeast, kPressed };

// The bits of both sides of the entries of a class.
struct EntryBits {
  BitSplit k = {}, v = {};

  friend bool operator==(const EntryBits&, const EntryBits&) = default;
};

// The bits of a head. Without classes `middle` holds for all entries, over rank_k and rank_v
// channels, and the others are empty. With classes the class that has most bits has codes of all
// these channels, and the others have codes of the first of them only. `pressed` is empty where
// nothing is sealed again; where it is not, no channel has more bits in it than in `middle`.
struct HeadBits {
  EntryBits middle = {}, most = {}, least = {}, pressed = {};

  constexpr const EntryBits& of(EntryClass entry_class) const {
    switch (entry_class) {
      case EntryClass::kMost:
        return most;
      case EntryClass::kLeast:
        return least;
      case EntryClass::kPressed:
        return pressed;
      case EntryClass::kMiddle:
        break;
    }
    return middle;
  }
  friend bool operator==(const HeadBits&, const HeadBits&) = default;
};

}  // namespace kvlathe
