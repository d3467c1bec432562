#include "cpu/kernels/latent/latent_keys_lanes.h"

namespace kvlathe {

void ReadLatentsAvx512F32(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<float, LaneKernels>(block, scratch);
}

// Beside the reader of Bf16 rows, which has vectors of its own.
void ExpandSealedBlockAvx512(const PackedRunView& run, const std::byte* block, int block_idx,
                             float* values) {
  LaneKernels::Expand(run, block, block_idx, values);
}

}  // namespace kvlathe
