#include "io/gguf/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "io/file_size_limit.h"
#include "io/files.h"
#include "io/gguf/gguf_test_writer.h"
#include "io/gguf/opened_gguf.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> AsBytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

// A key of every type, and an array of every type.
GgufTestWriter EveryKindOfValue() {
  GgufTestWriter writer;
  const GgufValueType integers[] = {GgufValueType::kUint8,  GgufValueType::kInt8,
                                    GgufValueType::kUint16, GgufValueType::kInt16,
                                    GgufValueType::kInt32,  GgufValueType::kUint32,
                                    GgufValueType::kInt64,  GgufValueType::kUint64};
  for (const GgufValueType type : integers) {
    const std::string name = std::to_string(static_cast<int>(type));
    writer.AddInteger("integer" + name, 100, type);
    writer.AddIntegers("integers" + name, {1, 2, 3}, type);
  }
  for (const GgufValueType type : {GgufValueType::kFloat32, GgufValueType::kFloat64}) {
    const std::string name = std::to_string(static_cast<int>(type));
    writer.AddFloat("float" + name, 0.1, type);
    writer.AddFloats("floats" + name, {0.1, -2}, type);
  }
  writer.AddText("text", "a\nb");
  writer.AddTexts("texts", {"", "ab"});
  writer.AddBool("yes", true);
  writer.AddIntegers("bools", {1, 0}, GgufValueType::kBool);
  writer.AddIntegers("none", {}, GgufValueType::kInt8);
  return writer;
}

TEST(GgufWriter, CopiesEveryKindOfValueByteForByte) {
  const ScratchFolder folder;
  EveryKindOfValue().Write(folder / "from.gguf");
  const GgufFile from = OpenOrDie(folder / "from.gguf");
  GgufWriter writer;
  writer.CopyMetadata(from);
  ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
  ASSERT_TRUE(writer.Commit().ok());
  const GgufFile to = OpenOrDie(folder / "to.gguf");
  EXPECT_EQ(to.stored_values().size(), 25u);
  EXPECT_EQ(to.stored_values(), from.stored_values());
  EXPECT_EQ(to.metadata(), from.metadata());
}

TEST(GgufWriter, SetsValuesAsTheTestsWriterWritesThem) {
  const ScratchFolder folder;
  GgufWriter writer;
  for (const auto& [type, name] : {std::pair{GgufValueType::kUint8, "0"},
                                   {GgufValueType::kInt16, "3"},
                                   {GgufValueType::kUint64, "10"}}) {
    writer.Set(std::string("integer") + name, int64_t{100}, type);
    writer.Set(std::string("integers") + name, std::vector<int64_t>{1, 2, 3}, type);
  }
  writer.Set("integer4", int64_t{100});
  writer.Set("integers4", std::vector<int64_t>{1, 2, 3});
  writer.Set("float6", 0.1);
  writer.Set("float12", 0.1, GgufValueType::kFloat64);
  writer.Set("floats6", std::vector<double>{0.1, -2});
  writer.Set("floats12", std::vector<double>{0.1, -2}, GgufValueType::kFloat64);
  writer.Set("text", "before");
  writer.Set("text", std::string_view("a\nb"));
  writer.Set("texts", std::vector<std::string_view>{"", "ab"});
  writer.Set("yes", true);
  writer.Set("bools", std::vector<int64_t>{1, 0}, GgufValueType::kBool);
  writer.Set("none", std::vector<int64_t>{}, GgufValueType::kInt8);
  ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
  ASSERT_TRUE(writer.Commit().ok());
  EveryKindOfValue().Write(folder / "expected.gguf");
  const GgufFile to = OpenOrDie(folder / "to.gguf");
  const GgufFile expected = OpenOrDie(folder / "expected.gguf");
  EXPECT_EQ(to.stored_values().size(), 17u);
  for (const auto& [key, bytes] : to.stored_values()) {
    EXPECT_EQ(bytes, expected.stored_values().at(key)) << key;
  }
}

TEST(GgufWriter, WritesTheBytesOfTheTestsWriter) {
  const ScratchFolder folder;
  GgufTestWriter expected;
  expected.AddText("general.architecture", "llama");
  expected.AddInteger("llama.block_count", 2);
  expected.AddF32("norm", {3}, {1.5f, -2.0f, 0});
  expected.AddF32("output", {2, 3}, {1, 2, 3, 4, 5, 6});
  std::string bytes = expected.Build();
  bytes.resize((bytes.size() + 31) / 32 * 32);  // the last tensor is padded too

  GgufWriter writer;
  writer.Set("llama.block_count", int64_t{2});
  writer.Set("general.architecture", std::string_view("llama"));
  writer.AddTensor("norm", GgmlType::kF32, {3});
  writer.AddTensor("output", GgmlType::kF32, {2, 3});
  ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "to.gguf"));
  ASSERT_TRUE(writer.Append(AsBytes({1.5f, -2.0f, 0})).ok());
  ASSERT_TRUE(writer.Append(AsBytes({1, 2, 3, 4, 5})).ok());  // in two pieces
  ASSERT_TRUE(writer.Append(AsBytes({6})).ok());
  ASSERT_TRUE(writer.Commit().ok());
  EXPECT_EQ(*ReadTextFile(folder / "to.gguf"), bytes);
  EXPECT_EQ(writer.n_bytes(), std::ssize(bytes));
}

TEST(GgufWriter, KeepsTheAlignment) {
  const ScratchFolder folder;
  GgufTestWriter from;
  from.SetAlignment(4096);
  from.AddF32("a", {2}, {1, 2});
  from.Write(folder / "from.gguf");
  GgufWriter writer;
  writer.CopyMetadata(OpenOrDie(folder / "from.gguf"));
  writer.AddTensor("a", GgmlType::kF32, {2});
  writer.AddTensor("b", GgmlType::kF32, {1, 1});
  ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
  ASSERT_TRUE(writer.Append(AsBytes({1, 2})).ok());
  ASSERT_TRUE(writer.Append(AsBytes({3})).ok());
  ASSERT_TRUE(writer.Commit().ok());
  const GgufFile to = OpenOrDie(folder / "to.gguf");
  const GgufTensor* a = *to.GetTensor("a", {2});
  const GgufTensor* b = *to.GetTensor("b", {1, 1});
  EXPECT_EQ(b->data - a->data, 4096);
  EXPECT_EQ(std::filesystem::file_size(folder / "to.gguf"), 3 * 4096u);
  float value;
  DequantizeBlocks(GgmlType::kF32, b->data, 1, &value);
  EXPECT_EQ(value, 3);
  EXPECT_THAT(to.TensorsInOrder(), ElementsAre(a, b));
}

TEST(GgufWriter, AFileOfSeveralBecomesOne) {
  const ScratchFolder folder;
  for (int part = 0; part < 2; ++part) {
    GgufTestWriter from;
    from.AddText("general.name", "m");
    from.AddInteger("split.no", part, GgufValueType::kUint16);
    from.AddInteger("split.count", 2, GgufValueType::kUint16);
    from.AddInteger("split.tensors.count", 2, GgufValueType::kInt32);
    from.AddF32(part == 0 ? "z" : "a", {1}, {1});
    from.Write(folder / ("m-0000" + std::to_string(part + 1) + "-of-00002.gguf"));
  }
  const GgufFile from = OpenOrDie(folder / "m-00001-of-00002.gguf");
  EXPECT_THAT(from.FilePaths(),
              ElementsAre(folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"));
  EXPECT_THAT(from.TensorsInOrder(), ElementsAre(from.FindTensor("z"), from.FindTensor("a")));
  GgufWriter writer;
  writer.CopyMetadata(from);
  ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
  ASSERT_TRUE(writer.Commit().ok());
  const GgufFile to = OpenOrDie(folder / "to.gguf");
  ASSERT_EQ(to.metadata().size(), 1u);
  EXPECT_EQ(*to.TextOr("general.name", ""), "m");
}

TEST(GgufWriter, AFullDiskLeavesWhatWasThere) {
  const ScratchFolder folder;
  const std::string path = folder / "to.gguf";
  std::ofstream(path) << "before";
  {
    GgufWriter writer;
    writer.AddTensor("a", GgmlType::kF32, {1 << 16});
    ASSERT_TRUE(writer.Begin(path).ok());
    const FileSizeLimit limit(100'000);
    const Status status = writer.Append(AsBytes(std::vector<float>(1 << 16)));
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(MessageOf(status), HasSubstr(path));
  }
  EXPECT_EQ(*ReadTextFile(path), "before");
  EXPECT_EQ(folder.n_files(), 1);
}

TEST(GgufWriter, WithoutACommitNothingIsLeft) {
  const ScratchFolder folder;
  {
    GgufWriter writer;
    writer.AddTensor("a", GgmlType::kF32, {2});
    ASSERT_TRUE(writer.Begin(folder / "to.gguf").ok());
    ASSERT_TRUE(writer.Append(AsBytes({1, 2})).ok());
  }
  EXPECT_EQ(folder.n_files(), 0);
}

TEST(GgufWriter, AFolderThatIsNotThereIsAnError) {
  const ScratchFolder folder;
  GgufWriter writer;
  EXPECT_EQ(writer.Begin(folder / "none/to.gguf").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvlathe
