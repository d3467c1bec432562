// A sealed block whose codes become numbers for all query rows, over vectors of lanes.h, and what
// is fetched for the next one meanwhile.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/byte_dots_lanes.h"
#include "cpu/kernels/attend/code_dots_lanes.h"
#include "cpu/kernels/attend/exact_entries.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// A sealed block, K and V.
struct CodeBlock {
  const PackedRunView* run;
  const std::byte* bytes;
  int16_t* numbers;       // of the side at work, for all rows (code_dots_lanes.h)
  uint8_t* small;         // of its channels behind the wide ones (byte_dots_lanes.h)
  bool is_exact;          // whether all channels are wide
  const std::byte* next;  // the block to fetch meanwhile, or null
  int block_idx;          // in its run
  bool is_last;           // of its run
  int first_entry;

  // Those of V, which lie behind those of K where they are made of them.
  int16_t* value_numbers() const {
    return numbers + (run->has_one_side ? kBlockSize * kMaxRank : 0);
  }
  uint8_t* value_small() const { return small + (run->has_one_side ? kBlockSize * kMaxRank : 0); }

  int WideChannels(const PackedSideView& side) const {
    return is_exact ? side.n_coded : WideChannelsOf(side);
  }
  // How far `next` lies from here. If it is smaller than this block, what is fetched behind it goes
  // unused.
  int64_t ahead() const {
    return next == nullptr ? 0
                           : reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(bytes);
  }

  static bool Reads(const PackedRunView& run) {
    return run.k.centroids == nullptr && run.k.signs == nullptr && run.rotation.half == 0;
  }
};

// --- Fetching what the next block needs beside its codes. It is done in two halves because the
// core drops requests when many come at once. ---

KVL_LANES void FetchLines(const void* from, int64_t n_bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  for (int64_t i = 0; i < n_bytes + 63; i += 64) PrefetchLine(first + Min(i, n_bytes - 1));
}

KVL_LANES void FetchScalesAndFactors(const CodeBlock& block) {
  const PackedSideView& side = block.run->k;
  const int64_t begin = side.scales;
  if (block.next != nullptr && (side.n_segments == 0 || side.has_token_scales)) {
    FetchLines(block.next + begin, block.run->block_bytes - begin);
  }
}

KVL_LANES void FetchExactEntries(const CodeBlock& block) {
  if (block.next == nullptr || block.is_last) return;
  for (const PackedSideView* side : {&block.run->k, &block.run->v}) {
    if (side->exact.ends == nullptr) continue;
    const ExactEntries entries = ExactEntriesOf(*side, block.block_idx + 1);
    if (entries.n == 0) continue;
    FetchLines(entries.differences, int64_t{2} * entries.n);
    FetchLines(entries.places, entries.n);
  }
}

// Makes the numbers and bytes of V of those of K, where rows hold keys and values together.
void TurnIntoValues(const CodeBlock& block) {
  const PackedSideView& side = block.run->k;
  const int n_wide = block.WideChannels(side);
  KeyNumbersToValues(block.numbers, n_wide, block.value_numbers());
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    if (segment.first < n_wide) continue;
    const int channel = segment.first - n_wide;
    KeyQuadsToValues(block.small + channel / 4 * kKeyQuadBytes, segment.n_channels,
                     KeyDistance(segment.bits), block.value_small() + channel / 16 * kColumnBytes);
  }
}

// Makes numbers of the codes of K or V, and fetches what the next block needs meanwhile.
template <bool kIsKey>
void ReadNumbers(const CodeBlock& block) {
  const PackedSideView& side = kIsKey ? block.run->k : block.run->v;
  if constexpr (kIsKey) {
    FetchScalesAndFactors(block);
  } else {
    if (block.run->has_one_side) return TurnIntoValues(block);
    FetchExactEntries(block);
  }
  const auto read = [&](const auto& reader, int64_t codes, int first, int n_channels) KVL_PART {
    int16_t* const to =
        block.numbers + (kIsKey ? first / 2 * kKeyPairWords : first / 16 * kColumnWords);
    ForEachVectorOf<kIsKey>(reader, block.bytes + codes, n_channels, block.ahead(),
                            [&](int pair, int line, int part, IntVec numbers) KVL_PART {
                              const int at = kIsKey ? pair * kKeyPairWords + 32 * line
                                                    : line * kColumnWords + 32 * pair;
                              StoreWords(to + at + 2 * kLanes * part, numbers);
                            });
  };
  if (side.n_segments == 0) {
    WithReader(side, [&](const auto& reader) KVL_PART { read(reader, side.codes, 0, side.rank); });
  }
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    const int n_wide = block.WideChannels(side);
    if (segment.first >= n_wide) {
      const int channel = segment.first - n_wide;
      ReadSmall<kIsKey>(
          segment, block.bytes, block.ahead(),
          block.small + (kIsKey ? channel / 4 * kKeyQuadBytes : channel / 16 * kColumnBytes));
      continue;
    }
    WithReader(segment, [&](const auto& reader) KVL_PART {
      read(reader, segment.codes, segment.first, segment.n_channels);
    });
  }
}

}  // namespace
}  // namespace kvlathe
