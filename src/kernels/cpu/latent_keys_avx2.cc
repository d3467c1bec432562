#include "kernels/cpu/latent_keys_lanes.h"

namespace kvlathe {

void ReadLatentsAvx2F32(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<float, LaneKernels>(block, scratch);
}
void ReadLatentsAvx2Bf16(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<uint16_t, LaneKernels>(block, scratch);
}
void ExpandSealedBlockAvx2(const PackedRunView& run, const std::byte* block, int block_idx,
                           float* values) {
  LaneKernels::Expand(run, block, block_idx, values);
}

}  // namespace kvlathe
