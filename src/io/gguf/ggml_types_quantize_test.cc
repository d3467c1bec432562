#include "io/gguf/ggml_types_quantize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

struct QuantizerCase {
  GgmlType type;
  // The largest allowed root of mean squared error by mean square, of normal values and of values
  // with heavy tails (Student's t with three degrees of freedom).
  double normal, heavy;
};
const std::vector<QuantizerCase>& Cases() {
  static const std::vector<QuantizerCase> kCases = {
      {GgmlType::kQ8_0, 0.0055, 0.0090},  {GgmlType::kQ4_0, 0.083, 0.130},
      {GgmlType::kQ4_1, 0.072, 0.095},    {GgmlType::kQ5_0, 0.0412, 0.0670},
      {GgmlType::kQ5_1, 0.0346, 0.0460},  {GgmlType::kQ2_K, 0.272, 0.315},
      {GgmlType::kQ3_K, 0.148, 0.196},    {GgmlType::kQ4_K, 0.0718, 0.0960},
      {GgmlType::kQ5_K, 0.0353, 0.0475},  {GgmlType::kQ6_K, 0.0175, 0.0265},
      {GgmlType::kIq4Nl, 0.0765, 0.105},  {GgmlType::kIq4Xs, 0.077, 0.106},
      {GgmlType::kMxfp4, 0.1145, 0.1450}, {GgmlType::kF16, 0.0003, 0.0003},
      {GgmlType::kBf16, 0.0025, 0.0025},  {GgmlType::kF32, 1e-12, 1e-12}};
  return kCases;
}

bool HasHalfScales(GgmlType type) {
  return LayoutOf(type).block_values > 1 && type != GgmlType::kMxfp4;
}

std::vector<std::byte> Quantized(GgmlType type, std::span<const float> values) {
  const GgmlLayout& layout = LayoutOf(type);
  const auto n = std::ssize(values);
  std::vector<std::byte> blocks(static_cast<size_t>(n / layout.block_values * layout.block_bytes));
  QuantizeBlocks(type, values.data(), n, blocks.data());
  return blocks;
}

std::vector<float> Dequantized(GgmlType type, const std::vector<std::byte>& blocks) {
  const GgmlLayout& layout = LayoutOf(type);
  const int64_t n = std::ssize(blocks) / layout.block_bytes * layout.block_values;
  std::vector<float> values(static_cast<size_t>(n));
  DequantizeBlocks(type, blocks.data(), n, values.data());
  return values;
}

std::vector<float> RoundTrip(GgmlType type, std::span<const float> values) {
  return Dequantized(type, Quantized(type, values));
}

std::vector<float> ValuesOf(int64_t n, const std::function<double(int64_t)>& value) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(value(i));
  return values;
}

std::vector<float> NormalValues(uint64_t seed, int64_t n, double deviation) {
  Random random(seed);
  return ValuesOf(n, [&](int64_t) { return deviation * random.Normal(); });
}

std::vector<float> HeavyTailedValues(uint64_t seed, int64_t n) {
  Random random(seed);
  return ValuesOf(n, [&](int64_t) {
    double squares = 0;
    for (int i = 0; i < 3; ++i) squares += std::pow(random.Normal(), 2);
    return 0.02 * random.Normal() / std::sqrt(squares / 3);
  });
}

double RelativeError(std::span<const float> values, std::span<const float> found) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    errors += std::pow(static_cast<double>(found[i]) - values[i], 2);
    squares += std::pow(static_cast<double>(values[i]), 2);
  }
  return std::sqrt(errors / squares);
}

TEST(QuantizeBlocks, ErrorsAreBelowTheBoundOfTheType) {
  const auto normal = NormalValues(1, 256 * 200, 0.02);
  const auto heavy = HeavyTailedValues(2, 256 * 200);
  for (const QuantizerCase& quantizer : Cases()) {
    const std::string_view name = LayoutOf(quantizer.type).name;
    EXPECT_LT(RelativeError(normal, RoundTrip(quantizer.type, normal)), quantizer.normal) << name;
    EXPECT_LT(RelativeError(heavy, RoundTrip(quantizer.type, heavy)), quantizer.heavy) << name;
  }
}

// The least error that one F16 scale could leave in a block of Q4_0, by trial of very many.
double LeastErrorOfQ4_0(std::span<const float> block) {
  double least = INFINITY;
  for (int bits = 0x0400; bits < 0x4000; ++bits) {
    for (const int sign : {0, 0x8000}) {
      const double scale = ToFloat(F16{static_cast<uint16_t>(bits | sign)});
      double error = 0;
      for (const float x : block) {
        const double q = std::clamp(std::nearbyint(x / scale), -8.0, 7.0);
        error += std::pow(q * scale - x, 2);
      }
      least = std::min(least, error);
    }
  }
  return least;
}

TEST(QuantizeBlocks, ABlockIsNearTheBestOfAllScales) {
  double found = 0, least = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto values = NormalValues(seed, 32, 1);
    const auto quantized = RoundTrip(GgmlType::kQ4_0, values);
    for (size_t i = 0; i < 32; ++i) found += std::pow(quantized[i] - values[i], 2);
    least += LeastErrorOfQ4_0(values);
  }
  EXPECT_GE(found, least * 0.999);
  EXPECT_LT(found, least * 1.1);  // large values weigh more, so it is not the least itself
}

// The functions below make blocks whose lowest and highest codes are in use in every group: with a
// smaller range another scale may serve as well, and nothing says that it is the same.
void SetBits(std::vector<std::byte>* block, int at, int shift, int mask, int value) {
  std::byte& byte = (*block)[static_cast<size_t>(at)];
  byte = (byte & ~std::byte(mask << shift)) | std::byte(value << shift);
}
void SetHalf(std::vector<std::byte>* block, int at, float value) {
  const F16 half = ToF16(value);
  std::memcpy(&(*block)[static_cast<size_t>(at)], &half.bits, 2);
}

std::vector<std::byte> RandomBlock(GgmlType type, Random* random) {
  std::vector<std::byte> block(static_cast<size_t>(LayoutOf(type).block_bytes));
  for (std::byte& byte : block) byte = std::byte(random->Below(256));
  return block;
}

// Blocks of 32: the first code is the lowest, the last the highest.
std::vector<std::byte> FullBlockOf32(GgmlType type, Random* random) {
  auto block = RandomBlock(type, random);
  SetHalf(&block, 0, type == GgmlType::kIq4Nl ? 0.0123f : -0.37f);
  switch (type) {
    case GgmlType::kQ8_0:
      for (std::byte& byte : block) byte = byte == std::byte{128} ? std::byte{127} : byte;
      SetHalf(&block, 0, 0.0123f);
      block[2] = std::byte{127};
      break;
    case GgmlType::kQ4_1:
      SetHalf(&block, 0, 0.37f);
      SetHalf(&block, 2, 1.25f);
      break;
    case GgmlType::kQ5_1:
      SetHalf(&block, 0, 0.37f);
      SetHalf(&block, 2, -3.25f);
      SetBits(&block, 4, 0, 1, 0);
      SetBits(&block, 7, 7, 1, 1);
      break;
    case GgmlType::kQ5_0:
      SetBits(&block, 2, 0, 1, 0);
      break;
    default:
      break;
  }
  if (type != GgmlType::kQ8_0) {
    const int codes = static_cast<int>(block.size()) - 16;
    SetBits(&block, codes, 0, 15, 0);
    SetBits(&block, codes + 15, 4, 15, 15);
  }
  return block;
}

TEST(QuantizeBlocks, ValuesOfABlockOf32ComeBackExactly) {
  Random random(5);
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                              GgmlType::kQ5_1, GgmlType::kIq4Nl, GgmlType::kMxfp4}) {
    for (int i = 0; i < 50; ++i) {
      auto block = FullBlockOf32(type, &random);
      if (type == GgmlType::kMxfp4) block[0] = std::byte(random.Below(253));
      const auto values = Dequantized(type, block);
      ASSERT_EQ(RoundTrip(type, values), values) << LayoutOf(type).name << " " << i;
    }
  }
}

// Blocks of 256 whose groups have the lowest and the highest code, and one group the largest scale
// and minimum.
std::vector<float> FullValuesOf256(GgmlType type, Random* random) {
  const bool is_line =
      type == GgmlType::kQ2_K || type == GgmlType::kQ4_K || type == GgmlType::kQ5_K;
  const bool is_table = type == GgmlType::kIq4Xs;
  const int n_groups = type == GgmlType::kQ4_K || type == GgmlType::kQ5_K || is_table ? 8 : 16;
  const int max_scale = type == GgmlType::kQ2_K ? 15 : type == GgmlType::kQ6_K ? 127 : 63;
  const int n_codes = type == GgmlType::kQ2_K   ? 4
                      : type == GgmlType::kQ3_K ? 8
                      : type == GgmlType::kQ5_K ? 32
                      : type == GgmlType::kQ6_K ? 64
                                                : 16;
  constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
  const float scale = ToFloat(ToF16(0.0123f)), min_scale = ToFloat(ToF16(0.031f));
  const int group_values = 256 / n_groups;
  std::vector<float> values;
  for (int g = 0; g < n_groups; ++g) {
    // -32 is the largest scale of six bits with a sign, -128 of eight.
    const int largest = is_line ? max_scale : type == GgmlType::kQ6_K ? -128 : -32;
    const int below = is_line ? max_scale : type == GgmlType::kQ6_K ? 128 : 32;
    const int s = g == 3 ? largest : 1 + static_cast<int>(random->Below(below - 1));
    const int m = g == 5 ? max_scale : static_cast<int>(random->Below(max_scale + 1));
    for (int i = 0; i < group_values; ++i) {
      int code = static_cast<int>(random->Below(n_codes));
      if (i == 2) code = 0;
      if (i == 7) code = n_codes - 1;
      const int grid = is_table ? kTable[code] : is_line ? code : code - n_codes / 2;
      const float value = scale * static_cast<float>(s) * static_cast<float>(grid);
      values.push_back(is_line ? value - min_scale * static_cast<float>(m) : value);
    }
  }
  return values;
}

TEST(QuantizeBlocks, ValuesOfABlockOf256ComeBackExactly) {
  Random random(6);
  for (const GgmlType type : {GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ5_K,
                              GgmlType::kQ6_K, GgmlType::kIq4Xs}) {
    for (int i = 0; i < 20; ++i) {
      const auto values = FullValuesOf256(type, &random);
      ASSERT_EQ(RoundTrip(type, values), values) << LayoutOf(type).name << " " << i;
    }
  }
}

TEST(QuantizeBlocks, NumbersOf16BitsStayAsTheyAre) {
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBf16}) {
    std::vector<std::byte> bits(2 * 65536);
    for (size_t i = 0; i < 65536; ++i) {
      auto number = static_cast<uint16_t>(i);
      const uint16_t infinity = type == GgmlType::kF16 ? 0x7c00 : 0x7f80;
      if ((number & infinity) == infinity) number = 0;
      std::memcpy(&bits[2 * i], &number, 2);
    }
    EXPECT_EQ(Quantized(type, Dequantized(type, bits)), bits) << LayoutOf(type).name;
  }
}

TEST(QuantizeBlocks, ZerosStayZeros) {
  const std::vector<float> zeros(512, 0.0f);
  for (const QuantizerCase& quantizer : Cases()) {
    EXPECT_EQ(RoundTrip(quantizer.type, zeros), zeros) << LayoutOf(quantizer.type).name;
  }
}

TEST(QuantizeBlocks, ABlockWithOneValueKeepsIt) {
  for (const QuantizerCase& quantizer : Cases()) {
    const GgmlLayout& layout = LayoutOf(quantizer.type);
    const bool is_table = quantizer.type == GgmlType::kIq4Nl || quantizer.type == GgmlType::kIq4Xs;
    // The values of IQ4 have no 0, the nearest is a 127th of the largest.
    const double allowed = is_table ? 0.0085 : quantizer.type == GgmlType::kBf16 ? 0.004 : 0.001;
    for (int64_t at = 0; at < layout.block_values; at += 7) {
      for (const float value : {0.75f, -0.75f, 0.1f, -0.1f}) {
        // 0.1 is no power of two times one of the values of E2M1.
        if (quantizer.type == GgmlType::kMxfp4 && std::fabs(value) == 0.1f) continue;
        std::vector<float> values(static_cast<size_t>(layout.block_values), 0.0f);
        values[static_cast<size_t>(at)] = value;
        const auto found = RoundTrip(quantizer.type, values);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(found[i], values[i], allowed * std::fabs(value))
              << layout.name << " " << at << " " << value << " " << i;
        }
      }
    }
  }
}

TEST(QuantizeBlocks, ABlockOfEqualValuesKeepsThem) {
  for (const QuantizerCase& quantizer : Cases()) {
    const GgmlLayout& layout = LayoutOf(quantizer.type);
    for (const float value : {1.5f, -1.5f}) {
      const std::vector<float> values(static_cast<size_t>(layout.block_values), value);
      EXPECT_LT(RelativeError(values, RoundTrip(quantizer.type, values)), 0.001)
          << layout.name << " " << value;
    }
  }
}

TEST(QuantizeBlocks, ErrorsDoNotDependOnTheMagnitude) {
  for (const QuantizerCase& quantizer : Cases()) {
    // Numbers of F16, and the minima of Q4_1 and Q5_1, end at 65,504.
    const bool has_halves = quantizer.type == GgmlType::kF16 || quantizer.type == GgmlType::kQ4_1 ||
                            quantizer.type == GgmlType::kQ5_1;
    for (const double deviation : {0.5, 1e3, has_halves ? 1e4 : 6e4}) {
      const auto values = NormalValues(3, 256 * 40, deviation);
      EXPECT_LT(RelativeError(values, RoundTrip(quantizer.type, values)), quantizer.normal * 1.05)
          << LayoutOf(quantizer.type).name << " " << deviation;
    }
  }
}

TEST(QuantizeBlocks, TinyValuesAreKeptWhereScalesReachThem) {
  for (const double deviation : {1e-30, 1e-37}) {
    const auto values = NormalValues(4, 256 * 40, deviation);
    for (const QuantizerCase& quantizer : Cases()) {
      const auto found = RoundTrip(quantizer.type, values);
      if (HasHalfScales(quantizer.type) || quantizer.type == GgmlType::kF16) {
        EXPECT_THAT(found, testing::Each(0.0f)) << LayoutOf(quantizer.type).name;
      } else if (deviation == 1e-30) {
        EXPECT_LT(RelativeError(values, found), quantizer.normal * 1.05)
            << LayoutOf(quantizer.type).name;
      }
    }
  }
}

TEST(QuantizeBlocks, ValuesBeyondTheRangeBecomeTheLargest) {
  for (const QuantizerCase& quantizer : Cases()) {
    const GgmlLayout& layout = LayoutOf(quantizer.type);
    for (const float magnitude : {1e30f, 3.4028234e38f}) {
      std::vector<float> values(256, magnitude);
      for (size_t i = 0; i < values.size(); i += 3) values[i] = -magnitude;
      const auto blocks = Quantized(quantizer.type, values);
      EXPECT_TRUE(AllFinite(quantizer.type, blocks.data(), 256)) << layout.name << " " << magnitude;
      const auto found = Dequantized(quantizer.type, blocks);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(std::isfinite(found[i])) << layout.name;
        ASSERT_EQ(std::signbit(found[i]), std::signbit(values[i])) << layout.name << " " << i;
        ASSERT_GE(std::fabs(found[i]), 65504) << layout.name << " " << i;
      }
    }
  }
}

TEST(QuantizeBlocks, OneLargeValueLeavesAFiniteBlock) {
  for (const QuantizerCase& quantizer : Cases()) {
    auto values = NormalValues(8, 256, 1e-3);
    values[100] = 3e38f;
    values[200] = -1e-45f;
    const auto blocks = Quantized(quantizer.type, values);
    EXPECT_TRUE(AllFinite(quantizer.type, blocks.data(), 256)) << LayoutOf(quantizer.type).name;
    EXPECT_GE(Dequantized(quantizer.type, blocks)[100], 65504) << LayoutOf(quantizer.type).name;
  }
}

TEST(QuantizeBlocks, ABlockDependsOnItsValuesAlone) {
  // At an odd address, each block for itself, in four threads at once.
  constexpr int64_t kValues = 256 * 16;
  const auto values = HeavyTailedValues(9, kValues);
  for (const QuantizerCase& quantizer : Cases()) {
    const GgmlLayout& layout = LayoutOf(quantizer.type);
    const auto expected = Quantized(quantizer.type, values);
    std::vector<std::vector<std::byte>> found(4);
    std::vector<std::thread> threads;
    for (auto& blocks : found) {
      threads.emplace_back([&] {
        blocks.resize(expected.size() + 1);
        for (int64_t i = 0; i < kValues / layout.block_values; ++i) {
          QuantizeBlocks(quantizer.type, &values[static_cast<size_t>(i * layout.block_values)],
                         layout.block_values,
                         &blocks[static_cast<size_t>(1 + i * layout.block_bytes)]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& blocks : found) {
      blocks.erase(blocks.begin());
      EXPECT_EQ(blocks, expected) << layout.name;
    }
  }
}

TEST(QuantizeBlocks, BytesAreTheSameOnEveryMachine) {
  Random random(10);
  const auto values = ValuesOf(256 * 64, [&](int64_t) {
    const double x = random.Uniform() - 0.5;
    return x * x * x;
  });
  std::string found;
  for (const QuantizerCase& quantizer : Cases()) {
    const auto blocks = Quantized(quantizer.type, values);
    found += fmt::format("{} {:08x}\n", LayoutOf(quantizer.type).name, ExtendCrc32c(0, blocks));
  }
  EXPECT_EQ(found,
            "Q8_0 9df30d8a\nQ4_0 29280a5e\nQ4_1 738e82bb\nQ5_0 ecfa1f17\nQ5_1 16408e3a\n"
            "Q2_K 7ca6e752\nQ3_K 88748729\nQ4_K ef77d704\nQ5_K 1f26b5d5\nQ6_K 5cb3cb66\n"
            "IQ4_NL b6296728\nIQ4_XS 25d450bd\nMXFP4 547c9c79\nF16 7aea4728\nBF16 edcb9086\n"
            "F32 2c79fecf\n");
}

TEST(QuantizeBlocks, NoValuesAreNoWork) {
  for (const QuantizerCase& quantizer : Cases()) {
    QuantizeBlocks(quantizer.type, nullptr, 0, nullptr);
  }
}

}  // namespace
}  // namespace kvlathe
