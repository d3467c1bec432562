#include "cpu/kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

std::vector<float> RandomValues(int64_t n, float scale, Random& random) {
  std::vector<float> values(n);
  for (float& v : values) v = scale * static_cast<float>(random.Normal());
  return values;
}

// Guards the end of the output: kernels with masked tails must not write past it.
constexpr int64_t kGuard = 32;
constexpr float kUntouched = 12345.0f;

class ElementwiseTest : public testing::TestWithParam<Isa> {
 protected:
  const ElementwiseKernels& kernels_ = GetElementwiseKernels(GetParam());

  // Runs `kernel` into memory of both types and compares: |error| <= relative * scale(i), plus half
  // a unit of BF16 where rounded.
  void Check(const std::function<void(DType, void*)>& kernel, const std::vector<double>& expected,
             const std::vector<double>& scale, double relative) {
    const int64_t n = static_cast<int64_t>(expected.size());
    for (DType type : {DType::kF32, DType::kBf16}) {
      std::vector<std::byte> out((n + kGuard) * SizeOf(type));
      ConvertFromFloat(type, std::vector<float>(n + kGuard, kUntouched).data(), n + kGuard,
                       out.data());
      const float untouched = type == DType::kBf16 ? ToFloat(ToBf16(kUntouched)) : kUntouched;
      kernel(type, out.data());
      std::vector<float> values(n + kGuard);
      ConvertToFloat(type, out.data(), n + kGuard, values.data());
      for (int64_t i = 0; i < n; ++i) {
        const double rounding = type == DType::kBf16 ? 0x1p-8 * std::abs(expected[i]) : 0;
        ASSERT_NEAR(values[i], expected[i], relative * scale[i] + rounding + 1e-37)
            << DTypeName(type) << " at " << i << " of " << n;
      }
      for (int64_t i = n; i < n + kGuard; ++i) ASSERT_EQ(values[i], untouched) << "past the end";
    }
  }
};

TEST_P(ElementwiseTest, RmsNormMatchesDouble) {
  Random random(1);
  for (int64_t n_dims : {1, 16, 63, 64, 100, 2048, 8191}) {
    const int64_t n_rows = 3;
    const float eps = 1e-5f;
    const std::vector<float> x = RandomValues(n_rows * n_dims, 3.0f, random);
    const std::vector<float> weight = RandomValues(n_dims, 1.0f, random);
    std::vector<double> expected(x.size()), scale(x.size());
    for (int64_t t = 0; t < n_rows; ++t) {
      double squares = 0;
      for (int64_t i = 0; i < n_dims; ++i) squares += std::pow(double{x[t * n_dims + i]}, 2);
      for (int64_t i = 0; i < n_dims; ++i) {
        const int64_t at = t * n_dims + i;
        expected[at] = x[at] / std::sqrt(squares / static_cast<double>(n_dims) + eps) * weight[i];
        scale[at] = std::abs(expected[at]);
      }
    }
    Check(
        [&](DType type, void* out) {
          kernels_.rms_norm(x.data(), weight.data(), eps, n_rows, n_dims, type, out);
        },
        expected, scale, 1e-6);
  }
}

TEST_P(ElementwiseTest, LayerNormMatchesDoubleAlsoFarFromZero) {
  Random random(5);
  for (int64_t n_dims : {1, 16, 63, 64, 100, 2048, 8191}) {
    for (double mean : {0.0, 50.0}) {
      const int64_t n_rows = 3;
      const float eps = 1e-5f;
      std::vector<float> x = RandomValues(n_rows * n_dims, 3.0f, random);
      for (float& v : x) v += static_cast<float>(mean);
      const std::vector<float> weight = RandomValues(n_dims, 1.0f, random);
      const std::vector<float> bias = RandomValues(n_dims, 1.0f, random);
      std::vector<double> expected(x.size()), scale(x.size());
      for (int64_t t = 0; t < n_rows; ++t) {
        const float* row = &x[t * n_dims];
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n_dims; ++i) sum += row[i];
        const double average = sum / static_cast<double>(n_dims);
        for (int64_t i = 0; i < n_dims; ++i) squares += std::pow(row[i] - average, 2);
        const double deviation = std::sqrt(squares / static_cast<double>(n_dims) + eps);
        for (int64_t i = 0; i < n_dims; ++i) {
          expected[t * n_dims + i] = (row[i] - average) / deviation * weight[i] + bias[i];
          // One rounding of the mean moves every value by it.
          scale[t * n_dims + i] =
              std::abs(bias[i]) +
              std::abs(weight[i]) * (std::abs(row[i] - average) + std::abs(average)) / deviation;
        }
      }
      Check(
          [&](DType type, void* out) {
            kernels_.layer_norm(x.data(), weight.data(), bias.data(), eps, n_rows, n_dims, type,
                                out);
          },
          expected, scale, 1e-6);
    }
  }
}

TEST_P(ElementwiseTest, LayerNormOfEqualValuesIsTheBias) {
  const std::vector<float> x(64, 7.0f), weight(64, 3.0f), bias(64, -0.5f);
  Check(
      [&](DType type, void* out) {
        kernels_.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, 1, 64, type, out);
      },
      std::vector<double>(64, -0.5), std::vector<double>(64), 0);
}

TEST_P(ElementwiseTest, GelusMatchDouble) {
  std::vector<float> x;
  for (int i = -1500; i <= 1500; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  x.insert(x.end(), {-1e30f, -100.0f, 100.0f, 1e30f, 0.0f, -0.0f, 1e-30f});
  std::vector<double> exact, approximate, scale, scale_approximate;
  for (double v : x) {
    exact.push_back(v * 0.5 * std::erfc(-v / std::sqrt(2.0)));
    const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    approximate.push_back(v / (1 + std::exp(-2 * u)));
    const double below = v < -5 ? 5e-4 : 0;
    scale.push_back(std::abs(exact.back()) + below);
    scale_approximate.push_back(std::abs(approximate.back()) + below);
  }
  const int64_t n = static_cast<int64_t>(x.size());
  Check([&](DType type, void* out) { kernels_.gelu(x.data(), n, type, out); }, exact, scale, 2e-6);
  Check([&](DType type, void* out) { kernels_.gelu_tanh(x.data(), n, type, out); }, approximate,
        scale_approximate, 2e-6);
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  const std::vector<float> x(64), weight(64, 1.0f);
  Check([&](DType type,
            void* out) { kernels_.rms_norm(x.data(), weight.data(), 1e-6f, 1, 64, type, out); },
        std::vector<double>(64), std::vector<double>(64), 0);
}

TEST_P(ElementwiseTest, RopeRotatesHalfLayoutPairsAndCopiesTheRest) {
  Random random(2);
  for (const auto& [rope_dim, head_dim] : {std::pair{64, 64}, std::pair{128, 128},
                                           std::pair{32, 80}, std::pair{20, 50}, std::pair{2, 3}}) {
    const int half = rope_dim / 2;
    const std::vector<float> x = RandomValues(head_dim, 1.0f, random);
    std::vector<float> cos(half), sin(half);
    std::vector<double> expected(x.begin(), x.end()), scale(head_dim, 0.0);
    for (int i = 0; i < half; ++i) {
      const double angle = 6.0 * random.Uniform();
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
      expected[i] = double{x[i]} * cos[i] - double{x[i + half]} * sin[i];
      expected[i + half] = double{x[i + half]} * cos[i] + double{x[i]} * sin[i];
      scale[i] = scale[i + half] = std::abs(x[i]) + std::abs(x[i + half]);
    }
    Check(
        [&](DType type, void* out) {
          kernels_.rope(x.data(), cos.data(), sin.data(), rope_dim, head_dim, type, out);
        },
        expected, scale, 0x1p-22);
    std::vector<float> in_place = x, apart(head_dim);
    kernels_.rope(x.data(), cos.data(), sin.data(), rope_dim, head_dim, DType::kF32, apart.data());
    kernels_.rope(in_place.data(), cos.data(), sin.data(), rope_dim, head_dim, DType::kF32,
                  in_place.data());
    EXPECT_EQ(in_place, apart);
  }
}

TEST_P(ElementwiseTest, SwigluMatchesDoubleToAMillionth) {
  Random random(3);
  for (int64_t ffn_dim : {1, 15, 64, 1000}) {
    const int64_t n_rows = 4;
    std::vector<float> gate_up = RandomValues(n_rows * 2 * ffn_dim, 4.0f, random);
    for (int64_t i = 0; i < ffn_dim; ++i) {  // the first row sweeps the range of the exponential
      gate_up[i] = static_cast<float>(170.0 * (static_cast<double>(i) + 0.5) / ffn_dim - 85.0);
    }
    std::vector<double> expected(n_rows * ffn_dim), scale(expected.size());
    for (int64_t t = 0; t < n_rows; ++t) {
      for (int64_t i = 0; i < ffn_dim; ++i) {
        const double gate = gate_up[t * 2 * ffn_dim + i];
        const double up = gate_up[t * 2 * ffn_dim + ffn_dim + i];
        expected[t * ffn_dim + i] = gate / (1 + std::exp(-gate)) * up;
        scale[t * ffn_dim + i] = std::abs(expected[t * ffn_dim + i]);
      }
    }
    Check(
        [&](DType type, void* out) { kernels_.swiglu(gate_up.data(), n_rows, ffn_dim, type, out); },
        expected, scale, 1e-6);
  }
}

TEST_P(ElementwiseTest, GegluIsGeluTanhOfTheGateTimesTheOther) {
  Random random(5);
  const int64_t n_rows = 3, ffn_dim = 83;
  const std::vector<float> gate_up = RandomValues(n_rows * 2 * ffn_dim, 4.0f, random);
  std::vector<double> expected(n_rows * ffn_dim), scale(expected.size());
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const double gate = gate_up[t * 2 * ffn_dim + i];
      const double up = gate_up[t * 2 * ffn_dim + ffn_dim + i];
      const double u = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
      expected[t * ffn_dim + i] = gate / (1 + std::exp(-2 * u)) * up;
      scale[t * ffn_dim + i] =
          std::abs(expected[t * ffn_dim + i]) + (gate < -5 ? 5e-4 * std::abs(up) : 0);
    }
  }
  Check([&](DType type,
            void* out) { kernels_.geglu_tanh(gate_up.data(), n_rows, ffn_dim, type, out); },
        expected, scale, 3e-6);
}

TEST_P(ElementwiseTest, Relu2SquaresWhatIsPositive) {
  Random random(8);
  for (const int64_t n : {1, 15, 64, 1000}) {
    std::vector<float> x = RandomValues(n, 4.0f, random);
    x[0] = -0.0f;
    std::vector<double> expected;
    for (const double v : x) expected.push_back(v > 0 ? v * v : 0);
    Check([&](DType type, void* out) { kernels_.relu2(x.data(), n, type, out); }, expected,
          expected, 1e-7);
  }
}

TEST_P(ElementwiseTest, XieluMatchesDoubleFromTinyToFarBelow) {
  const XieluNumbers numbers = {.positive = 0.8f, .negative = 1.3f, .beta = 0.5f, .eps = -1e-6f};
  std::vector<float> x = {0.0f, -0.0f, -1e-7f, -1e-6f, -2e-6f, 1e-30f, -88.0f, -1e4f, 1e4f, 1e-3f};
  for (int i = -600; i <= 600; ++i) x.push_back(static_cast<float>(i) * 0.0173f);
  for (int i = 1; i < 40; ++i) x.push_back(-std::exp2(-static_cast<float>(i)));
  std::vector<double> expected, scale;
  for (const double v : x) {
    const double linear = numbers.beta * v;
    const double power = std::expm1(std::min(v, double{numbers.eps}));
    const double curved = v > 0 ? numbers.positive * v * v : numbers.negative * (power - v);
    expected.push_back(curved + linear);
    scale.push_back(std::abs(linear) + (v > 0 ? curved : numbers.negative * std::abs(power)) +
                    std::abs(curved));
  }
  const int64_t n = static_cast<int64_t>(x.size());
  Check([&](DType type, void* out) { kernels_.xielu(numbers, x.data(), n, type, out); }, expected,
        scale, 3e-7);
}

TEST_P(ElementwiseTest, ClampedSwigluMatchesDoubleAlsoBeyondItsLimits) {
  Random random(9);
  for (const int64_t ffn_dim : {1, 15, 64, 1000}) {
    const int64_t n_rows = 4;
    std::vector<float> gate_up = RandomValues(n_rows * 2 * ffn_dim, 6.0f, random);
    for (int64_t i = 0; i < ffn_dim; ++i) {  // the first row sweeps the range of the exponential
      gate_up[i] = static_cast<float>(60.0 * (static_cast<double>(i) + 0.5) / ffn_dim - 50.0);
    }
    std::vector<double> expected(n_rows * ffn_dim), scale(expected.size());
    for (int64_t t = 0; t < n_rows; ++t) {
      for (int64_t i = 0; i < ffn_dim; ++i) {
        const double gate = std::min(double{gate_up[t * 2 * ffn_dim + i]}, 7.0);
        const double up = std::clamp(double{gate_up[t * 2 * ffn_dim + ffn_dim + i]}, -7.0, 7.0);
        const double gated = gate / (1 + std::exp(-1.702 * gate));
        expected[t * ffn_dim + i] = gated * (up + 1);
        // The exponent is rounded, which counts for more the larger it is.
        scale[t * ffn_dim + i] = std::abs(gated) * (std::abs(up) + 1) * (1 + std::abs(gate) / 4);
      }
    }
    Check([&](DType type,
              void* out) { kernels_.clamped_swiglu(gate_up.data(), n_rows, ffn_dim, type, out); },
          expected, scale, 1e-6);
  }
}

TEST_P(ElementwiseTest, GatesDoNotLoseWhatIsNoNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x(20, kNan), with_gate = {kNan, 1, 1, kNan};
  std::vector<float> out(20);
  kernels_.relu2(x.data(), 20, DType::kF32, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
  kernels_.xielu({1, 1, 0.5f, -1e-6f}, x.data(), 20, DType::kF32, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
  kernels_.clamped_swiglu(with_gate.data(), 1, 2, DType::kF32, out.data());
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
}

TEST_P(ElementwiseTest, RmsNormInPlaceIsTheSame) {
  Random random(6);
  const int64_t n_rows = 3, n_dims = 83;
  std::vector<float> x = RandomValues(n_rows * n_dims, 3.0f, random);
  const std::vector<float> weight = RandomValues(n_dims, 1.0f, random);
  std::vector<float> apart(x.size());
  kernels_.rms_norm(x.data(), weight.data(), 1e-5f, n_rows, n_dims, DType::kF32, apart.data());
  kernels_.rms_norm(x.data(), weight.data(), 1e-5f, n_rows, n_dims, DType::kF32, x.data());
  EXPECT_EQ(x, apart);
}

TEST_P(ElementwiseTest, SwigluOfExtremeGatesStaysFinite) {
  const std::vector<float> gate_up = {-1e30f, -200, -90, 0, 90, 1e30f, 1, 1, 1, 1, 1, 1};
  std::vector<float> out(6);
  kernels_.swiglu(gate_up.data(), 1, 6, DType::kF32, out.data());
  const std::vector<float> expected = {0, 0, 0, 0, 90, 1e30f};
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-30f) << i;
}

TEST_P(ElementwiseTest, ConvertRoundsToNearestEven) {
  Random random(4);
  std::vector<float> x = RandomValues(1003, 10.0f, random);
  for (int64_t i = 0; i < 64; ++i) {  // ties
    x[i] = std::bit_cast<float>(0x3f800000u + (static_cast<uint32_t>(i) << 16) + 0x8000u);
  }
  x[64] = std::numeric_limits<float>::infinity();
  std::vector<Bf16> out(x.size());
  kernels_.convert(x.data(), static_cast<int64_t>(x.size()), DType::kBf16, out.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(out[i].bits, ToBf16(x[i]).bits) << i;
  std::vector<float> copy(x.size());
  kernels_.convert(x.data(), static_cast<int64_t>(x.size()), DType::kF32, copy.data());
  EXPECT_EQ(copy, x);
}

TEST_P(ElementwiseTest, AddGramAddsProductsOfColumnsRowByRow) {
  Random random(5);
  for (const int64_t n_dims : {16, 48, 64, 80}) {
    const int64_t n_rows = 37;
    const std::vector<float> x = RandomValues(n_rows * n_dims, 2.0f, random);
    const std::vector<float> before = RandomValues(n_dims * n_dims, 5.0f, random);
    std::vector<float> gram = before, in_parts = before;
    kernels_.add_gram(x.data(), n_rows, n_dims, gram.data());
    for (int64_t t = 0, n = 1; t < n_rows; t += n, n = 2 * n) {
      n = std::min(n, n_rows - t);
      kernels_.add_gram(x.data() + t * n_dims, n, n_dims, in_parts.data());
    }
    EXPECT_EQ(in_parts, gram);
    for (int64_t i = 0; i < n_dims; ++i) {
      for (int64_t j = 0; j < n_dims; ++j) {
        double expected = before[i * n_dims + j], scale = std::abs(expected);
        for (int64_t t = 0; t < n_rows && j >= i / 16 * 16; ++t) {
          const double product = double{x[t * n_dims + i]} * x[t * n_dims + j];
          expected += product;
          scale += std::abs(product);
        }
        ASSERT_NEAR(gram[i * n_dims + j], expected, 1e-6 * scale) << i << ' ' << j;
      }
    }
  }
}

TEST_P(ElementwiseTest, SoftmaxMatchesDoubleAndStaysInsideItsRow) {
  Random random(6);
  for (const int64_t n : {1, 7, 16, 100, 2049}) {
    std::vector<float> x = RandomValues(n, 30.0f, random);
    const double largest = *std::max_element(x.begin(), x.end());
    std::vector<double> expected;
    double sum = 0;
    for (const float v : x) expected.push_back(std::exp((v - largest) * 0.125));
    for (const double v : expected) sum += v;
    x.resize(n + kGuard, kUntouched);
    kernels_.softmax(x.data(), n, 0.125f);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(x[i], expected[i] / sum, 2e-6 * expected[i] / sum) << i << " of " << n;
    }
    for (int64_t i = n; i < n + kGuard; ++i) ASSERT_EQ(x[i], kUntouched);
  }
}

TEST_P(ElementwiseTest, KlMatchesDoubleFromRoundingToFarApart) {
  Random random(7);
  for (const int64_t n : {1, 5, 1000, 1030, 49152}) {
    for (const float distance : {0.0f, 1e-3f, 0.1f, 5.0f}) {
      std::vector<float> from = RandomValues(n, 4.0f, random);
      for (float& x : from) x -= 40;
      std::vector<float> to = RandomValues(n, distance, random);
      for (int64_t i = 0; i < n; ++i) to[i] += from[i] + 60;
      double from_sum = 0, to_sum = 0, expected = 0;
      for (const float x : from) from_sum += std::exp(double{x});
      for (const float x : to) to_sum += std::exp(double{x});
      for (int64_t i = 0; i < n; ++i) {
        const double log_p = from[i] - std::log(from_sum);
        expected += std::exp(log_p) * (log_p - to[i] + std::log(to_sum));
      }
      ASSERT_NEAR(kernels_.kl(from.data(), to.data(), n), expected, 1e-6 + 1e-6 * expected)
          << n << " at " << distance;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ElementwiseTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace kvlathe
