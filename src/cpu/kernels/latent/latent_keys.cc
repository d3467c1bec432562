#include "cpu/kernels/latent/latent_keys.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

ReadLatentBlock GetLatentReader(Isa isa, DType row_type) {
  const bool is_f32 = row_type == DType::kF32;
  KVL_CHECK(is_f32 || row_type == DType::kBf16);
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return is_f32 ? ReadLatentsAvx2F32 : ReadLatentsAvx2Bf16;
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return is_f32 ? ReadLatentsAvx512F32 : ReadLatentsAvx512Bf16;
  }
  return is_f32 ? ReadLatentsScalarF32 : ReadLatentsScalarBf16;
}

int LatentsToRead(const LatentBlock& block) {
  const bool has_zeros =
      block.run != nullptr && block.run->k.n_segments > 0 && block.run->lowrank == 0;
  return has_zeros ? block.run->k.n_coded : block.shape.rank_k;
}

const LatentBytes* FindBytes(const LatentMapView& map, const PackedSideView& side) {
  BitSplit split;
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    split.channels[std::ranges::find(kSplitBits, segment.bits) - kSplitBits.begin()] =
        segment.n_channels;
  }
  const LatentBytes* const end = map.bytes + map.n_splits;
  const LatentBytes* const found = std::ranges::find(map.bytes, end, split, &LatentBytes::split);
  return found == end ? nullptr : found;
}

ReadSealedBlock GetSealedReader(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return ExpandSealedBlockAvx2;
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return ExpandSealedBlockAvx512;
  }
  return ExpandPackedBlock;
}

}  // namespace kvlathe
