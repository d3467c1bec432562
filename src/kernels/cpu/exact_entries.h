// The order of the exact entries of one side of a block (packed_layout.h), for code that takes them
// one by one. Files with flags of their own include it: everything has internal linkage.
#pragma once

#include <cstdint>

#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/attend_range.h"
#include "kernels/cpu/packed_layout.h"

namespace kvlathe {
namespace {

// How many entries each lane of a side has.
struct LaneCounts {
  const std::byte* counts = nullptr;
  bool is_wide = false;
  int n_lanes = 0;

  // Of 16 lanes from `first` on.
  void Read(int first, uint16_t (&to)[kExactLanes]) const {
    if (is_wide) return static_cast<void>(__builtin_memcpy(to, counts + 2 * first, sizeof(to)));
    for (int i = 0; i < kExactLanes; ++i) to[i] = static_cast<uint8_t>(counts[first + i]);
  }
};

// The exact entries of one side of a block.
struct ExactEntries {
  const uint16_t* differences;
  const uint8_t* places;
  int n;
};

// Of block `block_idx` of its run, where there are any.
KVL_INLINE ExactEntries ExactEntriesOf(const PackedSideView& side, int block_idx) {
  const int64_t i = int64_t{block_idx} * side.ends_step + side.ends_first;
  const uint32_t begin = i == 0 ? 0 : side.ends[i - 1];
  return {side.differences + begin, side.places + begin, static_cast<int>(side.ends[i] - begin)};
}

// Entries [begin, begin + n) of a side, which those of 16 lanes are: the lane of each.
struct ExactGroup {
  static constexpr int kMaxEntries = kExactLanes * 256;
  int begin = 0;
  int n = 0;
  uint8_t lanes[kMaxEntries + 2];  // two behind the last are written in vain
};

// Moves on to the 16 lanes from `first` on. Nothing branches on single counts, which do not repeat:
// a lane that has no entry left is overwritten by the next one.
inline void ListGroup(const LaneCounts& counts, int first, ExactGroup* group) {
  uint16_t left[kExactLanes], now[kExactLanes];
  int top = 0, n = 0;
  counts.Read(first, left);
  for (const uint16_t count : left) top = Max(top, count);
  for (int entry = 0; entry < top; entry += 2) {
    for (int lane = 0; lane < kExactLanes; ++lane) {
      now[lane] = left[lane] < 2 ? left[lane] : 2;
      left[lane] = static_cast<uint16_t>(left[lane] - now[lane]);
    }
    Unroll<kExactLanes>([&](auto lane) KVL_PART {
      const auto both = static_cast<uint16_t>((first + lane.value) * 0x101);
      __builtin_memcpy(group->lanes + n, &both, sizeof(both));
      n += now[lane.value];
    });
  }
  group->begin += group->n;
  group->n = n;
}

// f(group) for all groups of 16 lanes.
template <typename F>
KVL_INLINE void ForEachExactGroup(const LaneCounts& counts, const F& f) {
  ExactGroup group;
  for (int first = 0; first < counts.n_lanes; first += kExactLanes) {
    ListGroup(counts, first, &group);
    if (group.n > 0) f(group);
  }
}

template <bool kIsKey>
LaneCounts CountsOf(const PackedSideView& side, const std::byte* block) {
  return {block + side.counts, side.has_wide_counts, kIsKey ? kBlockSize : side.rank};
}

// f(token, channel, difference) for the exact entries of a side of block `block_idx` of its run.
template <bool kIsKey, typename F>
KVL_INLINE void ForEachExactEntry(const PackedSideView& side, const std::byte* block, int block_idx,
                                  const F& f) {
  if (side.ends == nullptr) return;
  const ExactEntries entries = ExactEntriesOf(side, block_idx);
  ForEachExactGroup(CountsOf<kIsKey>(side, block), [&](const ExactGroup& group) KVL_PART {
    for (int i = 0; i < group.n; ++i) {
      const int lane = group.lanes[i], place = entries.places[group.begin + i];
      const uint32_t bits = uint32_t{entries.differences[group.begin + i]} << 16;
      float difference;
      __builtin_memcpy(&difference, &bits, sizeof(difference));
      f(kIsKey ? lane : place, kIsKey ? place : lane, difference);
    }
  });
}

}  // namespace
}  // namespace kvlathe
