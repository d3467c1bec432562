#include "kernels/cpu/latent_keys.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

LatentMap::LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
                     DType row_type)
    : rank_(static_cast<int>(std::ssize(way_back) / head_dim)),
      head_dim_(head_dim),
      columns_(way_back.size() * SizeOf(row_type)),
      offset_(head_dim, 0.0f) {
  KVL_CHECK_EQ(int64_t{rank_} * head_dim, std::ssize(way_back));
  KVL_CHECK(rank_ % 16 == 0 && head_dim % 16 == 0);
  std::vector<float> columns(way_back.size());
  for (int r = 0; r < rank_; ++r) {
    for (int i = 0; i < head_dim; ++i) columns[i * rank_ + r] = way_back[r * head_dim + i];
  }
  ConvertFromFloat(row_type, columns.data(), std::ssize(columns), columns_.data());
  if (!offset.empty()) {
    KVL_CHECK_EQ(std::ssize(offset), head_dim);
    std::ranges::copy(offset, offset_.begin());
  }
}

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
