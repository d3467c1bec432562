#include "kernels/cpu/latent/latent_keys.h"

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
