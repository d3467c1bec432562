#include "cpu/kernels/latent/rebuild_rows.h"

#include <vector>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

float FloatOf(uint16_t bits) { return ToFloat(Bf16{bits}); }

void MapKeysScalar(const PackedMatrix& map, const uint16_t* k, float* keys) {
  const auto rank = static_cast<int>(map.n_in());
  std::vector<float> row(rank);
  for (int64_t i = 0; i < map.n_out(); ++i) {
    map.UnpackRow(i, row.data());
    for (int t = 0; t < kBlockSize; ++t) {
      float sum = 0;
      for (int r = 0; r < rank; ++r) sum += row[r] * FloatOf(k[KeyOffset(t, r)]);
      keys[i * kBlockSize + t] = sum;
    }
  }
}

void RoundKeysScalar(const float* keys, int n_dims, uint16_t* k) {
  for (int i = 0; i < n_dims; ++i) {
    for (int t = 0; t < kBlockSize; ++t) {
      k[KeyOffset(t, i)] = ToBf16(keys[i * kBlockSize + t]).bits;
    }
  }
}

void MapValuesScalar(const PackedMatrix& map, const uint16_t* v, uint16_t* to) {
  const auto rank = static_cast<int>(map.n_in()), n_dims = static_cast<int>(map.n_out());
  const BlockShape from_shape = {.rank_v = rank}, to_shape = {.rank_v = n_dims};
  std::vector<float> row(rank);
  for (int i = 0; i < n_dims; ++i) {
    map.UnpackRow(i, row.data());
    for (int t = 0; t < kBlockSize; ++t) {
      float sum = 0;
      for (int r = 0; r < rank; ++r) sum += row[r] * FloatOf(v[ValueOffset(from_shape, t, r)]);
      to[ValueOffset(to_shape, t, i)] = ToBf16(sum).bits;
    }
  }
}

}  // namespace

const RebuildKernels kRebuildScalar = {MapKeysScalar, RoundKeysScalar, MapValuesScalar};

const RebuildKernels& GetRebuildKernels(Isa isa) {
  return HasBf16Dots(isa) ? kRebuildAvx512 : kRebuildScalar;
}

}  // namespace kvlathe
