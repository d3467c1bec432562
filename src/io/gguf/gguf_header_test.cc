#include "io/gguf/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "io/gguf/gguf_damaged_files.h"
#include "io/gguf/gguf_test_writer.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

StatusOr<GgufHeader> ParseGguf(std::string_view file) {
  return ParseGgufHeader(std::as_bytes(std::span(file)), "m.gguf");
}

TEST(GgufHeader, ReadsBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string file = WellFormedGguf(version);
    const auto header = ParseGguf(file);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->version, version);
    EXPECT_EQ(header->alignment, 16);
    EXPECT_EQ(header->metadata.size(), 8u);
    EXPECT_EQ(header->metadata.at("negative"), GgufValue(int64_t{-5}));
    EXPECT_EQ(header->metadata.at("half"), GgufValue(0.5));
    EXPECT_EQ(header->metadata.at("bool"), GgufValue(true));
    ASSERT_EQ(header->tensors.size(), 3u);
    const GgufTensorEntry& blocks = header->tensors.at("blocks");
    EXPECT_THAT(blocks.shape, ElementsAre(2, 32));
    EXPECT_EQ(blocks.n_bytes, 68);
    EXPECT_EQ(file.substr(static_cast<size_t>(blocks.begin), 68), std::string(68, '\1'));
    const GgufTensorEntry& cube = header->tensors.at("cube");
    EXPECT_THAT(cube.shape, ElementsAre(2, 1, 2));
    EXPECT_EQ(cube.begin, blocks.begin + 80) << "68 bytes, padded to a multiple of 16";
    EXPECT_EQ(cube.begin + cube.n_bytes, std::ssize(file));
  }
}

TEST(GgufHeader, EveryDamagedFileIsRefusedWithWhatIsWrongInIt) {
  for (const DamagedGguf& damaged : DamagedGgufFiles()) {
    const Status status = ParseGguf(damaged.bytes).status();
    EXPECT_EQ(status.code(), damaged.code) << damaged.name << ": " << status;
    EXPECT_THAT(MessageOf(status), StartsWith("m.gguf: " + damaged.message)) << damaged.name;
    if (damaged.code == StatusCode::kDataLoss) {
      EXPECT_THAT(MessageOf(status), HasSubstr("download")) << damaged.name;
    }
  }
}

TEST(GgufHeader, EveryShorterFileIsRefusedInOnePrintableLine) {
  const std::string file = WellFormedGguf(3);
  for (size_t n = 0; n < file.size(); ++n) {
    const Status status = ParseGguf(std::string_view(file).substr(0, n)).status();
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << n;
    const std::string message = MessageOf(status);
    EXPECT_THAT(message, StartsWith("m.gguf: "));
    EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; })) << n;
  }
  EXPECT_TRUE(ParseGguf(file).ok());
}

TEST(GgufHeader, IntegersAndNumbersOfEveryTypeKeepTheirValue) {
  using Type = GgufValueType;
  const std::vector<std::pair<Type, std::vector<int64_t>>> cases = {
      {Type::kUint8, {0, 255}},
      {Type::kInt8, {-128, 127}},
      {Type::kUint16, {0, 65535}},
      {Type::kInt16, {-32768, 32767}},
      {Type::kUint32, {0, UINT32_MAX}},
      {Type::kInt32, {INT32_MIN, INT32_MAX}},
      {Type::kUint64, {0, INT64_MAX}},
      {Type::kInt64, {INT64_MIN, INT64_MAX}},
      {Type::kBool, {0, 1}}};
  for (const auto& [type, values] : cases) {
    GgufTestWriter writer;
    writer.AddIntegers("array", values, type);
    if (type != Type::kBool) writer.AddInteger("value", values[0], type);
    if (type != Type::kBool) writer.AddInteger("other value", values[1], type);
    const std::string file = writer.Build();
    const auto header = ParseGguf(file);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->metadata.at("array"), GgufValue(values));
    if (type == Type::kBool) continue;
    EXPECT_EQ(header->metadata.at("value"), GgufValue(values[0]));
    EXPECT_EQ(header->metadata.at("other value"), GgufValue(values[1]));
  }
  GgufTestWriter writer;
  writer.AddFloat("f32", 0.1);
  writer.AddFloat("f64", 0.1, Type::kFloat64);
  writer.AddFloats("f64s", {0.1, -1e300}, Type::kFloat64);
  const std::string file = writer.Build();
  const auto header = ParseGguf(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("f32"), GgufValue(static_cast<double>(0.1f)));
  EXPECT_EQ(header->metadata.at("f64"), GgufValue(0.1));
  EXPECT_EQ(header->metadata.at("f64s"), GgufValue(std::vector<double>{0.1, -1e300}));
}

TEST(GgufHeader, ATensorWithoutDimensionsIsOneValue) {
  GgufTestWriter writer;
  writer.AddF32("scalar", {}, {7.0f});
  const std::string file = writer.Build();
  const auto header = ParseGguf(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_TRUE(header->tensors.at("scalar").shape.empty());
  EXPECT_EQ(header->tensors.at("scalar").n_bytes, 4);
}

TEST(GgufHeader, AFileWithoutTensorsNeedsNoData) {
  GgufTestWriter writer;
  writer.AddText("a", "b");
  EXPECT_TRUE(ParseGguf(writer.Build()).ok());
}

TEST(GgufHeader, ATensorOfAnUnknownTypeHasNoBytesAndSharesNone) {
  GgufTestWriter writer;
  writer.AddEntry("unknown", 99, {3, 5}, 0);
  writer.AddEntry("known", 0, {1}, 0);
  writer.AddData("1234");
  const std::string file = writer.Build();
  const auto header = ParseGguf(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.at("unknown").type, 99u);
  EXPECT_EQ(header->tensors.at("unknown").n_bytes, 0);
}

TEST(GgufHeader, TensorsAndArrayValuesBeyondTheLimitsAreRefused) {
  GgufTestWriter tensors;
  tensors.ClaimTensors(kMaxGgufTensors + 1);
  tensors.AddData(std::string(static_cast<size_t>(kMaxGgufTensors + 2) * 24, '\0'));
  const Status too_many = ParseGguf(tensors.Build()).status();
  EXPECT_EQ(too_many.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(too_many), HasSubstr("1048577 tensors; the most that are read is 1048576"));

  GgufTestWriter arrays;
  const auto n_half = static_cast<uint64_t>(kMaxGgufArrayValues / 2 + 1);
  std::string value;
  AppendBytes<uint32_t>(0, &value);
  AppendBytes(n_half, &value);
  value.resize(value.size() + n_half);
  arrays.AddRaw("a", 9, value);
  arrays.AddRaw("b", 9, value);
  const Status too_long = ParseGguf(arrays.Build()).status();
  EXPECT_EQ(too_long.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(too_long), HasSubstr("key 'b' is an array of 8388609 values; the most"));
}

}  // namespace
}  // namespace kvlathe
