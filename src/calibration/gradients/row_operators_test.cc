#include "calibration/gradients/row_operators.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"

namespace kvlathe {
namespace {

std::vector<float> Draw(int64_t n, uint64_t seed, double scale = 1) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(scale * random.Normal());
  return values;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

// <dy, y(x + e) - y(x - e)> / 2 against <dx, e>, for a small random e.
template <typename Forward>
void ExpectGradient(const Forward& forward, const std::vector<float>& x,
                    const std::vector<float>& dy, const std::vector<float>& dx) {
  const std::vector<float> e = Draw(std::ssize(x), 99, 1e-2);
  std::vector<float> above = x, below = x;
  for (size_t i = 0; i < x.size(); ++i) {
    above[i] += e[i];
    below[i] -= e[i];
  }
  const double difference = (Dot(dy, forward(above)) - Dot(dy, forward(below))) / 2;
  EXPECT_NEAR(Dot(dx, e), difference, 2e-4 * (1 + std::abs(difference)));
}

TEST(RowOperatorsTest, GradientsOfNormsAreFiniteDifferences) {
  constexpr int64_t kRows = 6, kDims = 48;
  const std::vector<float> weight = Draw(3 * kDims, 1), bias = Draw(kDims, 2), none(kDims);
  for (const float* const added_bias :
       {static_cast<const float*>(nullptr), bias.data(), none.data()}) {
    for (const int64_t n_groups : {1, 3}) {
      const RowNorm norm = {weight.data(), added_bias, 1e-5f, kDims, n_groups};
      const auto forward = [&](const std::vector<float>& x) {
        std::vector<float> y(x.size());
        Normalise(GetElementwiseKernels(AvailableIsas().back()), norm, kRows, x.data(), y.data());
        return y;
      };
      const std::vector<float> x = Draw(kRows * kDims, 3, 2), dy = Draw(kRows * kDims, 4);
      std::vector<float> dx(x.size(), 5.0f);
      NormaliseBack(norm, kRows, x.data(), dy.data(), false, dx.data());
      ExpectGradient(forward, x, dy, dx);
      std::vector<float> added(x.size(), 5.0f);
      NormaliseBack(norm, kRows, x.data(), dy.data(), true, added.data());
      for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(added[i], dx[i] + 5, 1e-5);
      std::vector<float> in_place = dy;
      NormaliseBack(norm, kRows, x.data(), in_place.data(), false, in_place.data());
      EXPECT_EQ(in_place, dx);
    }
  }
}

TEST(RowOperatorsTest, RowsHaveTheWeightsOfTheirGroups) {
  constexpr int64_t kDims = 16;
  const std::vector<float> weight = Draw(2 * kDims, 1), x = Draw(3 * kDims, 3);
  const ElementwiseKernels& kernels = GetElementwiseKernels(AvailableIsas().back());
  std::vector<float> grouped(x.size()), single(x.size());
  Normalise(kernels, {weight.data(), nullptr, 1e-5f, kDims, 2}, 3, x.data(), grouped.data());
  for (int64_t row = 0; row < 3; ++row) {
    Normalise(kernels, {weight.data() + row % 2 * kDims, nullptr, 1e-5f, kDims}, 1,
              x.data() + row * kDims, single.data() + row * kDims);
  }
  EXPECT_EQ(grouped, single);
}

TEST(RowOperatorsTest, GradientsOfGatesAreFiniteDifferences) {
  constexpr int64_t kRows = 2, kFfn = 40;
  const XieluNumbers xielu = {.positive = 0.8f, .negative = 1.1f, .beta = 0.5f, .eps = -1e-6f};
  for (const MlpKind mlp : {MlpKind::kSwiglu, MlpKind::kGeglu, MlpKind::kGelu, MlpKind::kGeluTanh,
                            MlpKind::kRelu2, MlpKind::kXielu, MlpKind::kClampedSwiglu}) {
    const bool has_gate =
        mlp == MlpKind::kSwiglu || mlp == MlpKind::kGeglu || mlp == MlpKind::kClampedSwiglu;
    const int64_t n_in = kRows * kFfn * (has_gate ? 2 : 1);
    const RowGate gate = {mlp, kFfn, xielu};
    const auto forward = [&](const std::vector<float>& up) {
      std::vector<float> gated(kRows * kFfn);
      Gate(GetElementwiseKernels(AvailableIsas().back()), gate, kRows, up.data(), gated.data());
      return gated;
    };
    // Some of the clamped ones are beyond their limit.
    const double scale = mlp == MlpKind::kClampedSwiglu ? 5 : 1.5;
    const std::vector<float> up = Draw(n_in, 5, scale), d_gated = Draw(kRows * kFfn, 6);
    std::vector<float> d_up(n_in);
    GateBack(gate, kRows, up.data(), d_gated.data(), d_up.data());
    ExpectGradient(forward, up, d_gated, d_up);
  }
}

}  // namespace
}  // namespace kvlathe
