#include "io/gguf/ggml_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "io/files.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

constexpr int64_t kPlainValues = 9600;

struct TypeCase {
  GgmlType type;
  std::vector<int> scales;  // the byte offsets of a block's F16 scales
};
const std::vector<TypeCase>& TypesWithBlocks() {
  static const std::vector<TypeCase> kTypes = {
      {GgmlType::kQ4_0, {0}},    {GgmlType::kQ4_1, {0, 2}}, {GgmlType::kQ5_0, {0}},
      {GgmlType::kQ5_1, {0, 2}}, {GgmlType::kQ8_0, {0}},    {GgmlType::kQ2_K, {80, 82}},
      {GgmlType::kQ3_K, {108}},  {GgmlType::kQ4_K, {0, 2}}, {GgmlType::kQ5_K, {0, 2}},
      {GgmlType::kQ6_K, {208}},  {GgmlType::kIq4Nl, {0}},   {GgmlType::kIq4Xs, {0}}};
  return kTypes;
}

std::vector<std::byte> RandomBytes(uint64_t seed, uint64_t stream, int64_t n_bytes) {
  Random random(seed, stream);
  std::vector<std::byte> bytes(static_cast<size_t>((n_bytes + 7) / 8 * 8));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t number = random.Next();
    std::memcpy(&bytes[i], &number, 8);
  }
  bytes.resize(static_cast<size_t>(n_bytes));
  return bytes;
}

// The four functions below repeat those of tests/golden/ggml/make_golden.py.
uint16_t ScaleBits(uint64_t number) {
  const auto bits = static_cast<uint16_t>(number >> 16);
  if (number % 8 == 0) return bits & 0x8000;
  if (number % 8 == 1) return (bits & 0x83ff) | 1;
  return (bits & 0x7c00) == 0x7c00 ? bits & ~0x4000 : bits;
}

uint8_t ExponentByte(uint64_t number) {
  return static_cast<uint8_t>(number % 8 == 0 ? number >> 16 & 1 : (number >> 16) % 253);
}

template <typename T>
std::vector<std::byte> PlainValues(uint64_t seed, GgmlType type, T exponent) {
  auto bytes = RandomBytes(seed, static_cast<uint64_t>(type), kPlainValues * sizeof(T));
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    T bits;
    std::memcpy(&bits, &bytes[i], sizeof(T));
    if ((bits & exponent) == exponent) bits &= static_cast<T>(~exponent);
    std::memcpy(&bytes[i], &bits, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> RandomBlocks(uint64_t seed, const TypeCase& type_case, int64_t n_blocks) {
  const auto number = static_cast<uint64_t>(type_case.type);
  const int64_t block_bytes = LayoutOf(type_case.type).block_bytes;
  auto blocks = RandomBytes(seed, number, n_blocks * block_bytes);
  Random random(seed, 1000 + number);
  for (int64_t i = 0; i < n_blocks; ++i) {
    for (const int offset : type_case.scales) {
      const uint16_t bits = ScaleBits(random.Next());
      std::memcpy(&blocks[static_cast<size_t>(i * block_bytes + offset)], &bits, sizeof(bits));
    }
  }
  return blocks;
}

std::vector<std::byte> RandomMxfpBlocks(uint64_t seed, int64_t n_blocks) {
  constexpr auto kNumber = static_cast<uint64_t>(GgmlType::kMxfp4);
  auto blocks = RandomBytes(seed, kNumber, n_blocks * 17);
  Random random(seed, 1000 + kNumber);
  for (int64_t i = 0; i < n_blocks; ++i) {
    blocks[static_cast<size_t>(i * 17)] = std::byte{ExponentByte(random.Next())};
  }
  return blocks;
}

std::string CrcOf(std::span<const std::byte> bytes) {
  return fmt::format("{:08x}", ExtendCrc32c(0, bytes));
}

void ExpectGolden(const nlohmann::json& golden, GgmlType type,
                  const std::vector<std::byte>& blocks) {
  SCOPED_TRACE(LayoutOf(type).name);
  EXPECT_EQ(CrcOf(blocks), golden.at("blocks_crc32c")) << "the test made other blocks";
  const auto n_values = golden.at("n_values").get<int64_t>();
  std::vector<float> values(static_cast<size_t>(n_values));
  // At an odd address: blocks need no alignment.
  std::vector<std::byte> shifted(1);
  shifted.insert(shifted.end(), blocks.begin(), blocks.end());
  DequantizeBlocks(type, shifted.data() + 1, n_values, values.data());
  for (const auto& [index, bits] : golden.at("spots").items()) {
    const float value = values[std::stoul(index)];
    EXPECT_EQ(fmt::format("{:08x}", std::bit_cast<uint32_t>(value)), bits) << "value " << index;
  }
  EXPECT_EQ(CrcOf(std::as_bytes(std::span(values))), golden.at("values_crc32c"));
}

nlohmann::json ReadGolden() {
  auto golden = ReadJsonFile(KVLATHE_SOURCE_DIR "/tests/golden/ggml/golden.json");
  EXPECT_TRUE(golden.ok()) << golden.status();
  return golden.ok() ? *golden : nlohmann::json();
}

TEST(GgmlTypes, EveryValueIsThatOfThePythonPackageBitForBit) {
  const nlohmann::json golden = ReadGolden();
  const auto seed = golden.at("seed").get<uint64_t>();
  const nlohmann::json& types = golden.at("types");
  EXPECT_EQ(types.size(), 3 + TypesWithBlocks().size() + 1);
  ExpectGolden(types.at("F32"), GgmlType::kF32,
               PlainValues<uint32_t>(seed, GgmlType::kF32, 0x7f800000u));
  ExpectGolden(types.at("F16"), GgmlType::kF16,
               PlainValues<uint16_t>(seed, GgmlType::kF16, 0x7c00));
  ExpectGolden(types.at("BF16"), GgmlType::kBf16,
               PlainValues<uint16_t>(seed, GgmlType::kBf16, 0x7f80));
  const auto n_blocks = golden.at("n_blocks").get<int64_t>();
  for (const TypeCase& type_case : TypesWithBlocks()) {
    ExpectGolden(types.at(std::string(LayoutOf(type_case.type).name)), type_case.type,
                 RandomBlocks(seed, type_case, n_blocks));
  }
  ExpectGolden(types.at("MXFP4"), GgmlType::kMxfp4, RandomMxfpBlocks(seed, n_blocks));
}

TEST(GgmlTypes, EveryF16AndBf16NumberConvertsAsElsewhere) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const auto* from = reinterpret_cast<const std::byte*>(bits.data());
  std::vector<float> f16(bits.size()), bf16(bits.size());
  DequantizeBlocks(GgmlType::kF16, from, std::ssize(bits), f16.data());
  DequantizeBlocks(GgmlType::kBf16, from, std::ssize(bits), bf16.data());
  for (const uint16_t i : bits) {
    ASSERT_EQ(std::bit_cast<uint32_t>(f16[i]), std::bit_cast<uint32_t>(ToFloat(F16{i}))) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(ToFloat(Bf16{i}))) << i;
  }
}

TEST(GgmlTypes, EveryF16NumberIsTheSameAsAScale) {
  // With all integers 1, a block of Q8_0 is 32 times its scale.
  std::byte block[34];
  std::ranges::fill(block, std::byte{1});
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float scale = ToFloat(F16{bits});
    if (std::isnan(scale)) continue;  // the payload after a product is the machine's affair
    std::memcpy(block, &bits, sizeof(bits));
    float values[32];
    DequantizeBlocks(GgmlType::kQ8_0, block, 32, values);
    ASSERT_EQ(std::bit_cast<uint32_t>(values[31]), std::bit_cast<uint32_t>(scale)) << i;
  }
}

TEST(GgmlTypes, NoValuesAreNoWork) {
  DequantizeBlocks(GgmlType::kF32, nullptr, 0, nullptr);
  DequantizeBlocks(GgmlType::kQ4_K, nullptr, 0, nullptr);
  EXPECT_TRUE(AllFinite(GgmlType::kF32, nullptr, 0));
  EXPECT_TRUE(AllFinite(GgmlType::kQ4_K, nullptr, 0));
}

TEST(GgmlTypes, NamesAndLayoutsAreThoseOfThePythonPackage) {
  const nlohmann::json golden = ReadGolden();
  for (const auto& [number, expected] : golden.at("layouts").items()) {
    const auto layout = KnownGgmlLayout(static_cast<uint32_t>(std::stoul(number)));
    ASSERT_TRUE(layout.has_value()) << number;
    // ggml keeps both sums of Q8_1 as F16, the package counts them as F32. No file has the type.
    if (layout->name == "Q8_1") continue;
    EXPECT_EQ(fmt::format("{} {} {}", layout->name, layout->block_values, layout->block_bytes),
              expected);
    EXPECT_EQ(GgmlTypeName(static_cast<uint32_t>(std::stoul(number))), layout->name);
  }
}

TEST(GgmlTypes, NumbersOfRemovedAndOfNoTypesHaveNamesAndNoLayout) {
  EXPECT_EQ(GgmlTypeName(4), "Q4_2");
  EXPECT_EQ(GgmlTypeName(31), "Q4_0_4_4");
  EXPECT_EQ(GgmlTypeName(38), "IQ4_NL_8_8");
  EXPECT_EQ(GgmlTypeName(42), "Q2_0");
  EXPECT_EQ(GgmlTypeName(43), "type 43");
  EXPECT_EQ(GgmlTypeName(UINT32_MAX), "type 4294967295");
  for (const uint32_t number : {4u, 31u, 38u, 43u, UINT32_MAX}) {
    EXPECT_FALSE(KnownGgmlLayout(number).has_value()) << number;
    EXPECT_FALSE(GgmlTypeOf(number).has_value()) << number;
  }
  EXPECT_FALSE(GgmlTypeOf(16).has_value()) << "IQ2_XXS has a layout but is not read";
  EXPECT_EQ(GgmlTypeOf(12), GgmlType::kQ4_K);
}

TEST(GgmlTypes, AnInfiniteScaleOfAnyBlockIsSeen) {
  constexpr int64_t kBlocks = 7;
  for (const TypeCase& type_case : TypesWithBlocks()) {
    const GgmlLayout& layout = LayoutOf(type_case.type);
    const int64_t n = kBlocks * layout.block_values;
    const auto finite = RandomBlocks(3, type_case, kBlocks);
    EXPECT_TRUE(AllFinite(type_case.type, finite.data(), n)) << layout.name;
    for (int64_t block = 0; block < kBlocks; ++block) {
      for (const int offset : type_case.scales) {
        for (const uint16_t bits : {0x7c00, 0xfc00, 0x7c01}) {
          auto blocks = finite;
          std::memcpy(&blocks[static_cast<size_t>(block * layout.block_bytes + offset)], &bits, 2);
          EXPECT_FALSE(AllFinite(type_case.type, blocks.data(), n)) << layout.name << " " << block;
        }
      }
    }
  }
}

TEST(GgmlTypes, AnExponentOf255IsSeenInAnyBlockOfMxfp4) {
  constexpr int64_t kBlocks = 7;
  const auto finite = RandomMxfpBlocks(3, kBlocks);
  EXPECT_TRUE(AllFinite(GgmlType::kMxfp4, finite.data(), kBlocks * 32));
  for (size_t block = 0; block < kBlocks; ++block) {
    auto blocks = finite;
    std::fill_n(&blocks[block * 17], 17, std::byte{0});  // 255 is a NaN of zeros too
    blocks[block * 17] = std::byte{255};
    EXPECT_FALSE(AllFinite(GgmlType::kMxfp4, blocks.data(), kBlocks * 32)) << block;
  }
}

TEST(GgmlTypes, BlocksOfMxfp4AreFiniteExactlyWhereTheirValuesAre) {
  for (int exponent = 0; exponent < 255; ++exponent) {
    for (int code = 0; code < 16; ++code) {
      std::byte block[17] = {std::byte(exponent)};
      block[9] = std::byte(code << 4);
      float values[32];
      DequantizeBlocks(GgmlType::kMxfp4, block, 32, values);
      ASSERT_EQ(AllFinite(GgmlType::kMxfp4, block, 32), std::isfinite(values[24]))
          << exponent << " " << code;
    }
  }
}

TEST(GgmlTypes, BlocksThatAreAllFiniteHaveFiniteValues) {
  // The largest finite scales and integers of either sign.
  for (const TypeCase& type_case : TypesWithBlocks()) {
    const GgmlLayout& layout = LayoutOf(type_case.type);
    for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
      for (const uint16_t bits : {0x7bff, 0xfbff}) {
        std::vector<std::byte> block(static_cast<size_t>(layout.block_bytes), std::byte(fill));
        for (const int offset : type_case.scales) std::memcpy(&block[offset], &bits, sizeof(bits));
        ASSERT_TRUE(AllFinite(type_case.type, block.data(), layout.block_values));
        std::vector<float> values(static_cast<size_t>(layout.block_values));
        DequantizeBlocks(type_case.type, block.data(), layout.block_values, values.data());
        EXPECT_THAT(values, testing::Each(testing::Truly([](float x) { return std::isfinite(x); })))
            << layout.name;
      }
    }
  }
}

TEST(GgmlTypes, AnInfiniteNumberAnywhereIsSeenInTypesWithoutBlocks) {
  constexpr int64_t kValues = 37;
  const auto expect = [](GgmlType type, uint32_t finite, uint32_t infinite, uint32_t nan) {
    const auto n_bytes = static_cast<size_t>(LayoutOf(type).block_bytes);
    std::vector<std::byte> bytes(kValues * n_bytes);
    for (size_t i = 0; i < kValues; ++i) std::memcpy(&bytes[i * n_bytes], &finite, n_bytes);
    EXPECT_TRUE(AllFinite(type, bytes.data(), kValues)) << LayoutOf(type).name;
    for (size_t i = 0; i < kValues; ++i) {
      for (const uint32_t bits : {infinite, nan}) {
        std::memcpy(&bytes[i * n_bytes], &bits, n_bytes);
        EXPECT_FALSE(AllFinite(type, bytes.data(), kValues)) << LayoutOf(type).name << " " << i;
      }
      std::memcpy(&bytes[i * n_bytes], &finite, n_bytes);
    }
  };
  expect(GgmlType::kF32, 0xff7fffffu, 0xff800000u, 0x7f800001u);
  expect(GgmlType::kF16, 0xfbff, 0xfc00, 0x7c01);
  expect(GgmlType::kBf16, 0xff7f, 0xff80, 0x7f81);
}

}  // namespace
}  // namespace kvlathe
