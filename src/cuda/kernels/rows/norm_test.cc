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

// The CPU's norm of rows that follow each other. Without a bias it is that of roots of mean
// squares.
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

// What a norm has and what it lacks.
struct NormForm {
  NormKind function;
  bool has_weight, has_bias, has_group_weights;
};
constexpr NormForm kNormForms[] = {
    {NormKind::kRms, true, false, false},  {NormKind::kRms, false, false, false},
    {NormKind::kRms, true, false, true},   {NormKind::kLayer, true, true, false},
    {NormKind::kLayer, true, false, true}, {NormKind::kLayer, false, false, false}};

// The CPU's norms of rows of groups of n_dims numbers.
std::vector<float> NormsOfGroups(const NormForm& form, const std::vector<float>& x,
                                 const std::vector<float>& weights, const std::vector<float>& bias,
                                 int n_groups) {
  const auto n_dims = static_cast<int64_t>(bias.size());
  std::vector<float> all;
  for (int64_t idx = 0; idx < std::ssize(x) / n_dims; ++idx) {
    const int64_t group = form.has_group_weights ? idx % n_groups : 0;
    const auto w = weights.begin() + group * n_dims;
    const std::vector<float> weight =
        form.has_weight ? std::vector<float>(w, w + n_dims) : std::vector<float>(n_dims, 1);
    const std::vector<float> added = form.has_bias ? bias : std::vector<float>(n_dims);
    const bool is_layer = form.function == NormKind::kLayer;
    const auto from = x.begin() + idx * n_dims;
    const std::vector<float> y =
        NormsOfCpu({from, from + n_dims}, weight, is_layer ? &added : nullptr, 1e-5f);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, float bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
}

TEST(NormTest, IsThatOfTheCpu) {
  const int n_rows = 3, n_groups = 2;
  for (const int n_dims : {1, 33, 144, 516, 2049, 8192}) {
    for (const NormForm& form : kNormForms) {
      const std::vector<float> x = DrawnRows(n_rows * n_groups * n_dims, 1);
      const std::vector<float> weight = DrawnRows(n_groups * n_dims, 2);
      const std::vector<float> bias = DrawnRows(n_dims, 3);
      const DeviceArray<float> on_device(x), weights(weight), biases(bias), y(std::ssize(x));
      const NormParams norm = {.function = form.function,
                               .x = on_device.data(),
                               .n_rows = n_rows,
                               .n_groups = n_groups,
                               .n_dims = n_dims,
                               .stride = n_groups * n_dims,
                               .weight = form.has_weight ? weights.data() : nullptr,
                               .has_group_weights = form.has_group_weights,
                               .bias = form.has_bias ? biases.data() : nullptr,
                               .eps = 1e-5f,
                               .out = y.data()};
      Normalise(nullptr, {&norm, 1});
      ExpectNear(y.Download(), NormsOfGroups(form, x, weight, bias, n_groups), 1e-5f);
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

// Layers without a norm in front round their rows, and one behind them still adds to a residual.
TEST(NormTest, WithoutAFunctionRowsAreConvertedAlone) {
  const int n_rows = 3, n_dims = 516;
  const std::vector<float> x = DrawnRows(n_rows * n_dims, 8);
  const std::vector<float> residual = DrawnRows(n_rows * n_dims, 9);
  const DeviceArray<float> rows(x), sums(residual), y(std::ssize(x));
  const DeviceArray<uint16_t> rounded(std::ssize(x));
  NormParams norm = {.function = NormKind::kNone,
                     .x = rows.data(),
                     .n_rows = n_rows,
                     .n_dims = n_dims,
                     .stride = n_dims,
                     .out_type = DType::kBf16,
                     .out = rounded.data()};
  Normalise(nullptr, {&norm, 1});
  norm.out = y.data();
  norm.out_type = DType::kF32;
  norm.added_to = sums.data();
  Normalise(nullptr, {&norm, 1});
  const std::vector<float> plain = y.Download(), sum = sums.Download();
  const std::vector<uint16_t> bits = rounded.Download();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bits[i], ToBf16(x[i]).bits) << i;
    ASSERT_EQ(plain[i], x[i]) << i;
    ASSERT_EQ(sum[i], residual[i] + x[i]) << i;
  }
}

}  // namespace
}  // namespace kvlathe::cuda
