// What the kernels of sealing know of the runs of a batch: SealJob (cpu/kernels/seal/seal.h) with
// addresses on a GPU and the offsets of packed_layout.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/codebook/codebook.h"
#include "format/codes/code_side.h"
#include "format/split_bits/bit_split.h"
#include "format/table_codes/code_table.h"

namespace kvlathe::cuda {

// What the rows of blocks are before they are sealed.
enum class RowKind : int32_t { kBf16, kF32, kCoded };

// What a run of a codec with codebooks has of the model, on the device
// (format/codebook/codebook.h).
struct SealedModel {
  const Codebook* books = nullptr;    // [2]: of K, of V
  const float* key_scales = nullptr;  // [2][rank_k]: ranges, offsets
  int n_key_entries = 0;              // exact entries of K of the run
  // KeyRotation of the run's first block, where keys are sealed as they were before RoPE.
  const float *cos = nullptr, *sin = nullptr;
  int half = 0;  // 0: nothing turns
  float way_back = 1;
};

// What repairs the losses of a side: exact entries and low-rank factors. Offsets are bytes.
struct SealedRepairs {
  int n_outliers = 0;  // at either end: of a channel of K over the run, of a token of V over heads
  int lowrank = 0;     // columns
  int64_t count_offset = 0;  // of entries by lane, in a packed block
  bool has_wide_counts = false;
  // In the run record (K) or the layer record (V).
  int64_t ends_offset = 0, difference_offset = 0, place_offset = 0;
  int64_t a_offset = 0;  // in a packed block, [lowrank][kBlockSize] F16
  int64_t b_offset = 0;  // in the run record, [lowrank][rank] F16
  // By block and lines: a bit for each number, set where it is kept exactly, and what codes lose.
  // Null where nobody asks.
  uint32_t* exact = nullptr;  // [n_blocks][kBlockSize * rank / 32]
  float* residual = nullptr;  // [n_blocks][kBlockSize * rank]
};

// K or V of a head of a run. Offsets are bytes.
struct SealedSide {
  int rank = 0;
  int64_t row_offset = 0;          // of the side in a block of rows
  int64_t coded_scale_offset = 0;  // of the scales of coded rows in such a block
  int64_t code_offset = 0;         // in a packed block
  int64_t scale_offset = 0;        // of the scales of tokens in a packed block
  // What shares a scale: `group` tokens of a block (kChannel) or channels. More than a block of
  // tokens is all of span_blocks blocks.
  int group = 0;
  int span_blocks = 1;
  BitSplit split;  // where bits are split
  SealedRepairs repairs;
};

struct SealedHeadRun {
  const std::byte* const* blocks = nullptr;  // [n_blocks] on the device
  std::byte* const* packed = nullptr;        // [n_blocks] on the device
  std::byte* record = nullptr;
  std::byte* layer_record = nullptr;
  int n_blocks = 0;
  // The heads that share the layer record, of SealKernelParams::heads.
  int first_of_layer = 0, n_of_layer = 1;
  SealedSide k, v;
  SealedModel model;
};

// What a block of threads seals: a block of a head, or the blocks from there on that share scales.
struct SealedPlace {
  int head = 0;
  int block = 0;
};

// How the numbers of a side become codes of one width.
struct CodedSide {
  int bits = 0;
  ScaleSharing sharing = ScaleSharing::kToken;
  bool is_symmetric = false;
};

// Of a whole batch.
struct SealKernelParams {
  const SealedHeadRun* heads = nullptr;  // on the device
  const SealedPlace* places = nullptr;   // on the device, every block of every head
  int n_places = 0;
  RowKind row_kind = RowKind::kBf16;
  bool has_one_side = false;      // there is no V
  int32_t* not_finite = nullptr;  // [heads][2], of K and of V: become 1
};

}  // namespace kvlathe::cuda
