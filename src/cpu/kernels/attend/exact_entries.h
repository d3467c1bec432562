// The order of the exact entries of one side of a block (packed_layout.h), for code that takes them
// one by one. Files with flags of their own include it: everything has internal linkage.
#pragma once

#include <cstdint>

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "format/packed_layout.h"

namespace kvlathe {
namespace {

// How many entries each lane of a side has.
struct LaneCounts {
  const std::byte* counts = nullptr;
  bool is_wide = false;
  int n_lanes = 0;
};

// The exact entries of one side of a block.
struct ExactEntries {
  const uint16_t* differences;
  const uint8_t* places;
  int n;
};

// The exact entries of block `block_idx` of its run. The side has exact entries.
KVL_INLINE ExactEntries ExactEntriesOf(const PackedSideView& side, int block_idx) {
  const ExactEntriesView& exact = side.exact;
  const int64_t i = int64_t{block_idx} * exact.ends_step + exact.ends_first;
  const uint32_t begin = i == 0 ? 0 : exact.ends[i - 1];
  return {exact.differences + begin, exact.places + begin, static_cast<int>(exact.ends[i] - begin)};
}

// The lane of each exact entry of a side, in their order.
struct ExactLanes {
  int n = 0;
  uint8_t lanes[kBlockSize * kMaxPackedRank + 8];  // eight behind the last are written in vain
};

// The lanes of the entries that four lanes have in a round, as bytes of a word. The index is made
// of the lanes' counts, each from 0 to 2 and in two bits.
struct RoundLanes {
  uint64_t of_counts[256];
};
constexpr RoundLanes ListRoundLanes() {
  RoundLanes lanes = {};
  for (int counts = 0; counts < 256; ++counts) {
    int n = 0;
    for (int lane = 0; lane < 4; ++lane) {
      for (int i = 0; i < (counts >> (2 * lane) & 3) && n < 8; ++i) {
        lanes.of_counts[counts] |= static_cast<uint64_t>(lane) << (8 * n++);
      }
    }
  }
  return lanes;
}
constexpr RoundLanes kRoundLanes = ListRoundLanes();

// Appends the lanes of the entries of 16 lanes from `first` on. Nothing branches on single counts,
// which do not repeat.
template <typename Count>
KVL_INLINE void ListRounds(const std::byte* counts, int first, ExactLanes* to) {
  Count left[kExactLanes];
  __builtin_memcpy(left, counts, sizeof(left));
  int n = to->n;
  for (;;) {
    uint64_t words[kExactLanes * sizeof(Count) / sizeof(uint64_t)], any = 0;
    __builtin_memcpy(words, left, sizeof(left));
    for (const uint64_t word : words) any |= word;
    if (any == 0) break;
    uint8_t now[kExactLanes];
    for (int lane = 0; lane < kExactLanes; ++lane) {
      now[lane] = static_cast<uint8_t>(left[lane] < 2 ? left[lane] : 2);
      left[lane] = static_cast<Count>(left[lane] - now[lane]);
    }
    for (int lane = 0; lane < kExactLanes; lane += 4) {
      uint32_t four;
      __builtin_memcpy(&four, now + lane, sizeof(four));
      // The products bring two bits of each byte, and the sum of all, to the highest one.
      const uint64_t lanes = kRoundLanes.of_counts[four * 0x01041040u >> 24] +
                             static_cast<uint64_t>(first + lane) * 0x0101010101010101u;
      __builtin_memcpy(to->lanes + n, &lanes, sizeof(lanes));
      n += static_cast<int>(four * 0x01010101u >> 24);
    }
  }
  to->n = n;
}

inline void ListLanes(const LaneCounts& counts, ExactLanes* to) {
  to->n = 0;
  for (int first = 0; first < counts.n_lanes; first += kExactLanes) {
    if (counts.is_wide) {
      ListRounds<uint16_t>(counts.counts + 2 * first, first, to);
    } else {
      ListRounds<uint8_t>(counts.counts + first, first, to);
    }
  }
}

template <bool kIsKey>
LaneCounts CountsOf(const PackedSideView& side, const std::byte* block) {
  return {block + side.exact.counts, side.exact.has_wide_counts, kIsKey ? kBlockSize : side.rank};
}

// Calls f(token, channel, difference) for the exact entries of a side of block `block_idx` of its
// run.
template <bool kIsKey, typename F>
KVL_INLINE void ForEachExactEntry(const PackedSideView& side, const std::byte* block, int block_idx,
                                  const F& f) {
  if (side.exact.ends == nullptr) return;
  const ExactEntries entries = ExactEntriesOf(side, block_idx);
  ExactLanes lanes;
  ListLanes(CountsOf<kIsKey>(side, block), &lanes);
  for (int i = 0; i < lanes.n; ++i) {
    const int lane = lanes.lanes[i], place = entries.places[i];
    const uint32_t bits = uint32_t{entries.differences[i]} << 16;
    float difference;
    __builtin_memcpy(&difference, &bits, sizeof(difference));
    f(kIsKey ? lane : place, kIsKey ? place : lane, difference);
  }
}

}  // namespace
}  // namespace kvlathe
