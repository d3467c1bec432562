// Norms on a GPU against those of the CPU.
#include "cuda/kernels/rows/norm.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cuda/testing/device_array.h"

namespace kvlathe::cuda {
namespace {

std::vector<float> DrawnRows(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> rows(n);
  for (float& x : rows) x = static_cast<float>(random.Normal());
  return rows;
}

TEST(NormTest, IsThatOfTheCpu) {
  const int n_rows = 3, n_groups = 2, n_dims = 144;
  for (const bool has_bias : {false, true}) {
    const std::vector<float> x = DrawnRows(n_rows * n_groups * n_dims, 1);
    const std::vector<float> weight = DrawnRows(n_dims, 2), bias = DrawnRows(n_dims, 3);
    const DeviceArray<float> on_device(x), weights(weight), biases(bias), y(std::ssize(x));
    const NormParams params = {.x = on_device.data(),
                               .n_rows = n_rows,
                               .n_groups = n_groups,
                               .n_dims = n_dims,
                               .stride = n_groups * n_dims,
                               .weight = weights.data(),
                               .bias = has_bias ? biases.data() : nullptr,
                               .eps = 1e-5f,
                               .out = y.data()};
    Normalise(nullptr, {&params, 1});
    std::vector<float> want(x.size());
    const ElementwiseKernels& kernels = GetElementwiseKernels(Isa::kScalar);
    auto* const out = reinterpret_cast<std::byte*>(want.data());
    if (has_bias) {
      kernels.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, n_rows * n_groups, n_dims,
                         DType::kF32, out);
    } else {
      kernels.rms_norm(x.data(), weight.data(), 1e-5f, n_rows * n_groups, n_dims, DType::kF32, out);
    }
    const std::vector<float> got = y.Download();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
  }
}

}  // namespace
}  // namespace kvlathe::cuda
