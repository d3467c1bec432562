// Sealed runs of a head as the kernels of a GPU see them, with everything worked out that does not
// depend on the block: what CodeSegment and PackedRunView (cpu/kernels/attend/attend_packed.h) are
// on CPUs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "format/split_bits/bit_split.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// Places of blocks count in steps of so many bytes (kDeviceAlignment of machine/object_id.h).
inline constexpr int64_t kPlaceBytes = 64;

// How numbers become values.
enum class CodeKind : uint8_t {
  kNumbers,    // of a fixed width, with scales and minima in F16 (format/uniform)
  kTable,      // of 4 bits, for numbers of a table (format/table_codes)
  kCentroids,  // of a codebook (format/codebook)
  kWindows,    // of several widths, for values of windows (format/split_bits)
};

// Channels of a side that have codes of the same bits.
struct ExpandSegment {
  int bits = 0;
  int first = 0;  // channel
  int n_channels = 0;
  uint32_t codes = 0;  // bytes from the start of the block
};

// Exact entries of a side of a run (format/packed_layout.h). Those of block b end at
// ends[b * ends_step + ends_first] and begin where those before them end.
struct ExpandExact {
  const uint32_t* ends = nullptr;  // null: there are none
  int ends_step = 1;
  int ends_first = 0;
  const uint16_t* differences = nullptr;  // Bf16
  const uint8_t* places = nullptr;
  uint32_t counts = 0;  // bytes from the start of the block
  bool has_wide_counts = false;
};

// K or V of a run. Addresses are those of the GPU.
struct ExpandSide {
  CodeKind kind = CodeKind::kNumbers;
  int rank = 0;
  int n_segments = 1;
  ExpandSegment segments[kSplitBits.size()] = {};
  bool is_symmetric = false;
  // Scales per channel are [groups][2][rank], a group being `group` tokens of the run. Scales per
  // token are [groups][parts][kBlockSize] for each block, a group being `group` channels.
  bool is_per_channel = false;
  int group = 0;
  uint32_t scales = 0;                      // in the block; not used with shared_scales
  const uint16_t* shared_scales = nullptr;  // F16, of all blocks
  // Of windows, whether tokens have scales, a byte each, and values count in units of them.
  bool has_token_scales = false;
  float unit = 1;  // of the numbers of a table
  std::array<int8_t, 16> numbers = {};
  std::array<float, 16> centroids = {};
  const float* model_scales = nullptr;  // [2][rank] of K with a codebook
  uint32_t factor = 0;                  // A [lowrank][kBlockSize] F16, in the block
  const uint16_t* basis = nullptr;      // B [lowrank][rank] F16
  ExpandExact exact;
};

// Blocks [first_block, first_block + n_blocks) of a head.
struct ExpandRun {
  int first_block = 0;
  int n_blocks = 0;
  ExpandSide k, v;
  int lowrank = 0;
  bool has_one_side = false;  // values are the keys
  // Keys are as they were before RoPE: KeyRotation, of the run's first block; null: they are not.
  const float* cos = nullptr;
  const float* sin = nullptr;
  int half = 0;
};

// The values of windows of 1 to 5 bits (UnitTable), in Bf16: of channels and of tokens.
struct WindowTables {
  uint16_t values[2][5][64];
};

}  // namespace kvlathe::cuda
