// Sealed runs as the attention kernels see them: where everything of a run lies. Portable code
// works the offsets out once for each run, and files that are compiled for an instruction set only
// read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/attend/attend.h"
#include "tensor/dtype.h"

namespace kvlathe {

// Where bits are split, the channels that have codes of the same bits.
struct CodeSegment {
  int bits = 0;
  int first = 0;  // channel
  int n_channels = 0;
  int64_t codes = 0;  // bytes from the start of a packed block
  // These are null at 8 bits, where a code stands for itself less 128, in units of kUnitStep.
  const float* values = nullptr;    // UnitValues
  const uint16_t* table = nullptr;  // UnitTable
  const int8_t* numbers = nullptr;  // UnitNumbers
  const int8_t* small = nullptr;    // SmallUnitBytes; null above kSmallBits
  const uint8_t* bytes = nullptr;   // UnitBytes, of which a byte counts byte_step
  float byte_step = 1;
};

// The exact entries of one side of a run. Those of block b end at ends[b * ends_step + ends_first]
// and begin where those before them end.
struct ExactEntriesView {
  const uint32_t* ends = nullptr;  // null: there are none
  int ends_step = 1;
  int ends_first = 0;
  const uint16_t* differences = nullptr;  // of all blocks, Bf16
  const uint8_t* places = nullptr;
  int64_t counts = 0;  // of lanes, in bytes from the start of a packed block
  bool has_wide_counts = false;
};

// K or V of one run of one head. Offsets are bytes from the start of a packed block.
struct PackedSideView {
  int rank = 0;
  int bits = 0;
  bool is_symmetric = false;
  // Scales per channel are [n_groups][2][rank], a group being `group` tokens of the run. Scales per
  // token are [n_groups][parts][kBlockSize] for each block, a group being `group` channels.
  bool is_per_channel = false;
  int group = 0;
  int n_groups = 0;
  int64_t codes = 0;
  int64_t scales = 0;                  // in the block; not used where shared_scales is set
  const F16* shared_scales = nullptr;  // of all blocks, in the record of the run or of the layer
  const float* centroids = nullptr;    // null: codes are numbers, or stand for those of a table
  // The TableWords of a table (code_table.h), the number of each code, and the unit of the numbers.
  // Scales per token are a byte each then, or where has_norms F16. Null where there is no table.
  const uint16_t* table = nullptr;
  const int8_t* numbers = nullptr;
  float table_unit = 1;
  bool has_norms = false;
  // Of K whose codes have signs: NumbersOfSigns, whose scales lie behind those of the table. Only
  // what expands blocks reads them.
  const int8_t* signs = nullptr;
  // The channels by bits, where bits are split. Codes are then those of unit_codes.h, and `bits`
  // and groups are not used.
  int n_segments = 0;
  CodeSegment segments[kSplitBits.size()] = {};
  int n_coded = 0;       // channels of all segments, the first of `rank`; the others count as zero
  int n_wide = 0;        // of these, the first ones: those with more than kSmallBits bits
  float small_step = 1;  // SmallStep, of the others
  // Where bits are split, whether codes of a token stand for numbers in units of its scale, a byte
  // of `scales` each (ScaleOfByte).
  bool has_token_scales = false;
  // Where tiles are balanced (balanced_layout.h), how many tokens a tile has; else 0. What codes,
  // scales and minima stand for is then multiplied: K with a number of each token, at `balance` of
  // the block, V with one of each channel, of channel_balance [tiles][rank].
  int balanced_tokens = 0;
  int64_t balance = 0;
  const F16* channel_balance = nullptr;
  // The ranges and offsets [2][rank] of K that has a codebook. V that has one has shared_scales.
  const float* model_scales = nullptr;
  int64_t factor = 0;          // A [lowrank][kBlockSize]
  const F16* basis = nullptr;  // B [lowrank][rank]
  ExactEntriesView exact;

  // Of V, the balance of block `block_idx` of the run; null where there is none.
  const F16* ChannelBalance(int block_idx) const {
    if (balanced_tokens == 0) return nullptr;
    return channel_balance + int64_t{block_idx * kBlockSize / balanced_tokens} * rank;
  }
};

// The signs of K as a side of their own, whose values are those that AddResiduals takes.
inline PackedSideView SignsOf(const PackedSideView& keys) {
  PackedSideView side = keys;
  side.numbers = keys.signs;
  side.table_unit = 1;
  side.scales += int64_t{2} * kBlockSize;
  side.signs = nullptr;
  return side;
}

// f(offset, n) for the stretches of numbers without codes where bits are split, in the order of a
// plain block of the side.
template <bool kIsKey, typename F>
constexpr void ForEachUncoded(const PackedSideView& side, const F& f) {
  const int n = side.rank - side.n_coded;
  if (n == 0) return;
  if constexpr (kIsKey) {
    f(int64_t{kBlockSize} * side.n_coded, int64_t{kBlockSize} * n);
  } else {
    for (int pair = 0; pair < kBlockSize / 2; ++pair) {
      f(int64_t{2} * (pair * side.rank + side.n_coded), int64_t{2} * n);
    }
  }
}

struct PackedRunView {
  PackedSideView k, v;
  int first_block = 0;  // of AttendParams::blocks; may be negative
  int lowrank = 0;
  // Whether `v` are the codes of `k`, which lie as those of K do (BlockShape::has_one_side).
  bool has_one_side = false;
  int64_t block_bytes = 0;
  KeyRotation rotation;  // of the run's first block, where keys are before RoPE
};

PackedRunView ViewRun(const AttendParams& params, const PackedRun& run);

// Whether the bits of the head's codes are split, so that runs list segments.
bool HasSplitBits(const PackedHead& head);

// The run that holds `block`, or null where blocks are plain. `run_idx` starts at 0 and moves on
// with calls for ascending blocks.
const PackedRun* FindRun(const PackedHead& head, int block, int* run_idx);

// Adds the exact entries of a block, which are differences from its other parts, to `values`. These
// are in the order of a plain F32 block.
void AddExactEntries(const PackedRunView& run, const std::byte* block, int block_idx,
                     float* values);

// Writes the values of block `block_idx` of its run in the order of a plain F32 block: K, and V
// behind it.
void ExpandPackedBlock(const PackedRunView& run, const std::byte* block, int block_idx, float* out);

}  // namespace kvlathe
