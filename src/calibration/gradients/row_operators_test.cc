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
  constexpr int64_t kRows = 3, kDims = 48;
  const std::vector<float> weight = Draw(kDims, 1), bias = Draw(kDims, 2);
  for (const bool has_bias : {false, true}) {
    const RowNorm norm = {weight.data(), has_bias ? bias.data() : nullptr, 1e-5f, kDims};
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

TEST(RowOperatorsTest, GradientsOfGatesAreFiniteDifferences) {
  constexpr int64_t kRows = 2, kFfn = 40;
  for (const MlpKind mlp :
       {MlpKind::kSwiglu, MlpKind::kGeglu, MlpKind::kGelu, MlpKind::kGeluTanh}) {
    const bool has_gate = mlp == MlpKind::kSwiglu || mlp == MlpKind::kGeglu;
    const int64_t n_in = kRows * kFfn * (has_gate ? 2 : 1);
    const auto forward = [&](const std::vector<float>& up) {
      std::vector<float> gated(kRows * kFfn);
      Gate(GetElementwiseKernels(AvailableIsas().back()), mlp, kRows, kFfn, up.data(),
           gated.data());
      return gated;
    };
    const std::vector<float> up = Draw(n_in, 5, 1.5), d_gated = Draw(kRows * kFfn, 6);
    std::vector<float> d_up(n_in);
    GateBack(mlp, kRows, kFfn, up.data(), d_gated.data(), d_up.data());
    ExpectGradient(forward, up, d_gated, d_up);
  }
}

}  // namespace
}  // namespace kvlathe
