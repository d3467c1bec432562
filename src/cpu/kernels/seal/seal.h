// Sealing turns the plain rows of a run into codes, scales and repairs (packed_layout.h).
//
// Even steps (docs/quantization.md, Codes). A group has scale = F16((max - min) / (2^bits - 1)) and
// minimum = F16(min). A code is round_half_even((x - minimum) / scale), clamped to the codes that
// exist; it is computed in F32 with the rounded scale and minimum. Where max = min the scale is 1,
// and a zero minimum is +0. A scale that rounds to 0 becomes the smallest F16; scales and minima
// beyond F16 become the largest. A symmetric group has scale = F16(max |x| / 127). At 4 bits it has
// scale = F16(x / -8) for the x with the largest |x| (the positive one of two), and code 0 stands
// for -8 scale.
//
// Clipping (docs/methods/oscar.md). Where a side clips, max and min of a group are at most, and at
// least minus, the magnitude with floor(clip * n) smaller ones among the n numbers of the token in
// the head, or the largest. Numbers beyond get the codes at either end.
//
// Balanced steps (docs/methods/kvarn.md). A tile is divided by its balance (seal_balance.h) before
// its groups get scales, minima and codes as above.
//
// Exact entries (docs/methods/gear.md). In K they are, of each channel, the key_outliers() largest
// rows of the run and as many smallest ones. In V they are, of each token, the value_outliers()
// largest and smallest values over the channels of all heads of the layer, heads in order. Of equal
// values the first is taken. Exact entries do not count for max and min; a group that holds nothing
// else gets scale 1 and minimum 0. Their places get the codes that any other value would get, and
// what those lose, in F32, is stored rounded to Bf16. Where there is a low-rank residual, its value
// at that place (of the stored factors, summed in double) is subtracted before the rounding,
// because readers add it to exact entries as to all others.
//
// Codebooks (docs/methods/kvquant.md). A code is the number of boundaries below
// (x - offset) / range. In K the range and the offset of a channel are the model's. In V a token
// has range = F16((max - min) / 2) and offset = F16((max + min) / 2) over all heads, exact entries
// left out; a range that rounds to 0 becomes the smallest F16, and a zero offset is +0. Exact
// entries of K are the n_key_entries() of the run with the largest |quotient|; equal ones are taken
// in the order of block, channel, token.
//
// Tables (code_table.h). A group has scale = 2^(floor(log2(max |x|)) - floor(log2(largest number *
// unit))) with an exponent from -126 to 127, or 1 if all its values are 0. A code is that of the
// number nearest to x / scale: the even code where two are equally near, and the last one beyond
// the last number. The rule and the rounding are those of the OCP Microscaling Formats (MX)
// Specification 1.0.
//
// Split bits (lathe). Rows come in units of their channels' deviations. Codes are the nearest of
// unit_codes.h, and there are no exact entries.
//
// Low-rank residual (docs/methods/gear.md). For each head R = X - D - S, where D is the values of
// the codes and S what exact entries add to them, so R is 0 at exact entries. R is approximated by
// A B^T with a power iteration in F32 and an orthonormal A; both are stored in F16. R = 0 gives
// A = B = 0, and an R of lower rank gives columns of 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "format/codebook/codebook.h"
#include "format/packed_layout.h"

namespace kvlathe {

// One KV head of a run.
struct SealHead {
  int rank_k = 0;
  int rank_v = 0;
  const std::byte* const* blocks = nullptr;  // [n_blocks] plain or with coded rows, and full
  std::byte* const* packed = nullptr;        // [n_blocks] PackedBlockBytes, to be written
  std::byte* record = nullptr;               // RunRecordBytes, to be written; null where that is 0
  HeadStorage storage;                       // what the codec keeps of the head
};

// One run of one layer of one sequence.
struct SealJob {
  std::span<const SealHead> heads;    // that share the layer record
  int first_head = 0;                 // number of the first in its layer, of the whole model
  std::byte* layer_record = nullptr;  // LayerRecordBytes; null where that is 0
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  EntryClass entry_class = EntryClass::kMiddle;
  // Draws the start of the power iteration, so that the same run gives the same bytes.
  uint64_t seed = 0;
  const LayerCodebooks* codebooks = nullptr;  // set where the format has codebooks
  // The angles of the run's blocks, where the format keeps keys as they were before RoPE.
  KeyRotation rotation;
};

class Sealer {
 public:
  // `power_loops`, at least 1, is how often the low-rank solver iterates. `pool` outlives the
  // sealer.
  Sealer(const PackedFormat& format, DType row_type, int power_loops, ThreadPool* pool, Isa isa);
  ~Sealer();

  // Seals all jobs, in parallel over heads. The error is kDataLoss when a row holds NaN or
  // infinity, and says in which head and whether in K or in V. What was written is undefined then.
  Status Run(std::span<const SealJob> jobs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
