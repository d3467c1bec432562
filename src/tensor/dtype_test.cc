#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace kvlathe {
namespace {

TEST(F16, RoundTripsEveryBitPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const F16 x{static_cast<uint16_t>(bits)};
    const float f = ToFloat(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(f))));
    } else {
      ASSERT_EQ(ToF16(f).bits, bits);
    }
  }
}

TEST(F16, RoundsToNearestEven) {
  EXPECT_EQ(ToFloat(ToF16(1.0f + 0x1.0p-11f)), 1.0f);              // tie to even
  EXPECT_EQ(ToFloat(ToF16(1.0f + 0x1.8p-10f)), 1.0f + 0x1.0p-9f);  // tie to even, upwards
  EXPECT_EQ(ToFloat(ToF16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(ToFloat(ToF16(65520.0f))));
  EXPECT_EQ(ToFloat(ToF16(0x1.0p-25f)), 0.0f);
  EXPECT_EQ(ToFloat(ToF16(0x1.8p-25f)), 0x1.0p-24f);
}

TEST(Bf16, RoundTripsAndRounds) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    if (!std::isnan(f)) {
      ASSERT_EQ(ToBf16(f).bits, bits);
    }
  }
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(ToFloat(ToBf16(1.0f + 0x1.0p-8f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1.0p-6f);
}

// Signs, exponents, what rounds up, down and to even, NaN of all kinds.
TEST(Bf16, ManyNumbersRoundAsOneDoes) {
  std::vector<float> numbers;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<Bf16> rounded(numbers.size());
  ConvertFromFloat(DType::kBf16, numbers.data(), std::ssize(numbers), rounded.data());
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, ToBf16(numbers[i]).bits) << std::bit_cast<uint32_t>(numbers[i]);
  }
}

TEST(Convert, IsTheElementwiseConversion) {
  const float from[4] = {0.f, 1.5f, -3.25f, 1e-3f};
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    alignas(8) std::byte stored[16];
    float back[4];
    ConvertFromFloat(dtype, from, 4, stored);
    ConvertToFloat(dtype, stored, 4, back);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(back[i], from[i], std::abs(from[i]) * 0x1.0p-8f);
  }
}

}  // namespace
}  // namespace kvlathe
