// Norms on a GPU against those of the CPU.
#include "cuda/kernels/rows/norm.h"

#include <gtest/gtest.h>

#include <memory>
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

// The CPU's norm of rows that follow each other.
std::vector<float> NormsOfCpu(const std::vector<float>& x, const std::vector<float>& weight,
                              const std::vector<float>* bias, float eps) {
  std::vector<float> y(x.size());
  const auto n_dims = static_cast<int64_t>(weight.size()), n_rows = std::ssize(x) / n_dims;
  const ElementwiseKernels& kernels = GetElementwiseKernels(Isa::kScalar);
  if (bias == nullptr) {
    kernels.rms_norm(x.data(), weight.data(), eps, n_rows, n_dims, DType::kF32, y.data());
  } else {
    kernels.layer_norm(x.data(), weight.data(), bias->data(), eps, n_rows, n_dims, DType::kF32,
                       y.data());
  }
  return y;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, float bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
}

TEST(NormTest, IsThatOfTheCpu) {
  const int n_rows = 3, n_groups = 2;
  for (const int n_dims : {1, 33, 144, 516, 2049}) {
    for (const bool has_bias : {false, true}) {
      const std::vector<float> x = DrawnRows(n_rows * n_groups * n_dims, 1);
      const std::vector<float> weight = DrawnRows(n_dims, 2), bias = DrawnRows(n_dims, 3);
      const DeviceArray<float> on_device(x), weights(weight), biases(bias), y(std::ssize(x));
      const NormParams norm = {.x = on_device.data(),
                               .n_rows = n_rows,
                               .n_groups = n_groups,
                               .n_dims = n_dims,
                               .stride = n_groups * n_dims,
                               .weight = weights.data(),
                               .bias = has_bias ? biases.data() : nullptr,
                               .eps = 1e-5f,
                               .out = y.data()};
      Normalise(nullptr, {&norm, 1});
      ExpectNear(y.Download(), NormsOfCpu(x, weight, has_bias ? &bias : nullptr, 1e-5f), 1e-5f);
    }
  }
}

// As queries and keys: columns of the same rows, in place, and more norms than one launch takes.
TEST(NormTest, SeveralAreEachOfTheirColumns) {
  const int n_rows = 5, n_dims = 8, n_norms = 6, stride = 2 * n_norms * n_dims;
  const std::vector<float> x = DrawnRows(n_rows * stride, 4);
  const DeviceArray<float> rows(x);
  std::vector<std::vector<float>> weights;
  std::vector<std::unique_ptr<DeviceArray<float>>> on_device;
  std::vector<NormParams> norms;
  for (int i = 0; i < n_norms; ++i) {
    weights.push_back(DrawnRows(n_dims, 10 + i));
    on_device.push_back(std::make_unique<DeviceArray<float>>(weights.back()));
    float* const first = rows.data() + 2 * i * n_dims;
    norms.push_back({.x = first,
                     .n_rows = n_rows,
                     .n_groups = 2,
                     .n_dims = n_dims,
                     .stride = stride,
                     .weight = on_device.back()->data(),
                     .eps = 1e-6f,
                     .out = first});
  }
  Normalise(nullptr, norms);
  const std::vector<float> got = rows.Download();
  for (int row = 0; row < n_rows; ++row) {
    for (int group = 0; group < 2 * n_norms; ++group) {
      const auto first = row * stride + group * n_dims;
      const std::vector<float> group_x(x.begin() + first, x.begin() + first + n_dims);
      const std::vector<float> group_y(got.begin() + first, got.begin() + first + n_dims);
      ExpectNear(group_y, NormsOfCpu(group_x, weights[group / 2], nullptr, 1e-6f), 1e-5f);
    }
  }
}

TEST(NormTest, RoundsOnceAndAddsToAResidual) {
  const int n_rows = 2, n_dims = 20;
  const std::vector<float> x = DrawnRows(n_rows * n_dims, 5), weight = DrawnRows(n_dims, 6);
  const std::vector<float> residual = DrawnRows(n_rows * n_dims, 7);
  const DeviceArray<float> rows(x), weights(weight), sums(residual), y(std::ssize(x));
  const DeviceArray<uint16_t> rounded(std::ssize(x));
  NormParams norm = {.x = rows.data(),
                     .n_rows = n_rows,
                     .n_dims = n_dims,
                     .stride = n_dims,
                     .weight = weights.data(),
                     .eps = 1e-5f,
                     .out = y.data(),
                     .added_to = sums.data()};
  Normalise(nullptr, {&norm, 1});
  norm.out = rounded.data();
  norm.out_type = DType::kBf16;
  norm.added_to = nullptr;
  Normalise(nullptr, {&norm, 1});
  const std::vector<float> plain = y.Download(), sum = sums.Download();
  const std::vector<uint16_t> bits = rounded.Download();
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(bits[i], ToBf16(plain[i]).bits);
    EXPECT_EQ(sum[i], residual[i] + plain[i]);
  }
}

}  // namespace
}  // namespace kvlathe::cuda
