// Sealing: the plain rows of a run become codes, scales and repairs (packed_layout.h).
//
// Quantiser (docs/quantization.md, Codes): scale = F16((max - min) / (2^bits - 1)), minimum =
// F16(min), code = round_half_even((x - minimum) / scale) clamped to the codes there are, all in
// F32 with the rounded scale and minimum. max = min: scale 1; a zero minimum is +0. A scale that
// rounds to 0 becomes the smallest F16; scales and minima beyond F16 become the largest. Symmetric:
// scale = F16(max |x| / 127); at 4 bits scale = F16(x / -8) of the x with the largest |x| (of
// equals the positive one), and code 0 stands for -8 scale.
//
// Exact entries (docs/methods/gear.md): of K, per channel, the key_outliers() largest and then as
// many smallest rows of the run; of V, per token, the value_outliers() largest and smallest over
// the channels of all heads of the layer, heads in order. Of equal values the first is taken. They
// stay out of max and min; a group that holds nothing else gets scale 1, minimum 0. Their places
// get the codes that any other value would; what those lose, in F32, is rounded to Bf16. Where
// there is a low-rank residual, its value at that place (of the stored factors, summed in double)
// is subtracted before the rounding, because readers add it to exact entries as to all others.
//
// Codebooks (docs/methods/kvquant.md): of K, (x - offset) / range with the model's range and offset
// of the channel; of V, range = F16((max - min) / 2), offset = F16((max + min) / 2) of the token
// over all heads, exact entries apart; a range that rounds to 0 becomes the smallest F16, a zero
// offset is +0. The code is the
// number of boundaries below that quotient. Exact entries of K are the n_key_entries() of the run
// with the largest |quotient|, of equals the first by block, channel, token.
//
// Tables (code_table.h): scale = 2^(floor(log2(max |x|)) - floor(log2(largest number * unit))) of
// the group, 1 for a group of zeros, exponents from -126 to 127; the code is that of the number
// nearest to x / scale, of two equally near ones the even code, beyond the last number its own. The
// rule and the rounding are those of the OCP Microscaling Formats (MX) Specification 1.0.
//
// Split bits (lathe): rows are already in units of their channels' deviations; codes are those of
// unit_codes.h, the nearest, and there are no exact entries. The first k_bits.scaled channels of K
// have an offset and a scale in each block, the bytes nearest to the mean of the block's 64 numbers
// and to the root of their mean square about that offset; codes are of (x - offset) / scale.
//
// Low-rank residual (docs/methods/gear.md): R = X - D - S per head, D the values of the codes, S
// what exact entries miss beside them (R is 0 there); R ~ A B^T by power iteration in F32 with an
// orthonormal A, both stored in F16. R = 0 gives A = B = 0, and R of a lower rank columns of 0.
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
  BitSplit k_bits = {}, v_bits = {};         // where the format splits bits
  bool has_coded_rows = false;               // there only
};

// One run of one layer of one sequence.
struct SealJob {
  std::span<const SealHead> heads;    // that share the layer record
  int first_head = 0;                 // number of the first in its layer
  std::byte* layer_record = nullptr;  // LayerRecordBytes; null where that is 0
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  uint64_t seed = 0;  // of the start of the power iteration: the same run gives the same bytes
  const LayerCodebooks* codebooks = nullptr;  // where the format has them
  KeyRotation rotation;  // of the run's blocks, where the format keeps keys before RoPE
};

class Sealer {
 public:
  // `power_loops` of the low-rank solver, at least 1. `pool` outlives the sealer.
  Sealer(const PackedFormat& format, DType row_type, int power_loops, ThreadPool* pool, Isa isa);
  ~Sealer();

  // Seals all jobs, in parallel over heads. kDataLoss when a row holds NaN or infinity: it says
  // which of K and V, and which head; what was written is undefined then.
  Status Run(std::span<const SealJob> jobs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
