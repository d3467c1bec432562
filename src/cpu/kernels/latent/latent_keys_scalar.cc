#include "cpu/kernels/latent/latent_keys_loops.h"

namespace kvlathe {
namespace {

struct PortableKernels {
  static void Expand(const PackedRunView& run, const std::byte* block, int block_idx,
                     float* values) {
    ExpandPackedBlock(run, block, block_idx, values);
  }
  template <typename Row>
  static void AddProducts(const Row* a, const Row* b, const float* latents, int rank,
                          float (*sums)[kBlockSize]) {
    for (int r = 0; r < rank; ++r, latents += kBlockSize) {
      const float x = WideValue(a[r]), y = WideValue(b[r]);
      for (int t = 0; t < kBlockSize; ++t) {
        sums[0][t] += x * latents[t];
        sums[1][t] += y * latents[t];
      }
    }
  }
  static void StoreRows(const float* from, int64_t n, float* to) {
    __builtin_memcpy(to, from, n * sizeof(float));
  }
  static void StoreRows(const float* from, int64_t n, uint16_t* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(from[i]).bits;
  }
};

}  // namespace

void ReadLatentsScalarF32(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<float, PortableKernels>(block, scratch);
}
void ReadLatentsScalarBf16(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<uint16_t, PortableKernels>(block, scratch);
}

}  // namespace kvlathe
