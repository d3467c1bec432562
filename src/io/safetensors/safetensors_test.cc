#include "io/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string FileOf(std::string_view json, std::string_view data) {
  const uint64_t header_bytes = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &header_bytes, 8);
  return file.append(json).append(data);
}

// A file with one F32 tensor of one element.
void WriteOne(const std::string& path, const std::string& name, float value) {
  ASSERT_TRUE(WriteSafetensors(path, {{name, DType::kF32, {1}, &value}}, {}).ok());
}
float FirstOf(const SafetensorsReader& reader, std::string_view name) {
  return *reinterpret_cast<const float*>((*reader.Get(name, {1}))->data);
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const ScratchFolder folder;
  const std::vector<float> f32 = {1.5f, -2.0f, 3.25f};
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000, 0x4040, 0x4080};
  const uint16_t f16 = 0x3c00;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(WriteSafetensors(path,
                               {{"z.weight", DType::kF32, {3}, f32.data()},
                                {"a \"quoted\" name", DType::kBf16, {2, 2}, bf16.data()},
                                {"scalar", DType::kF16, {}, &f16},
                                {"empty", DType::kF32, {0, 7}, nullptr}},
                               {{"format", "pt"}, {"note", "line\nbreak"}})
                  .ok());
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->path(), path);
  EXPECT_EQ(reader->tensors().size(), 4u);
  EXPECT_EQ(reader->metadata().at("note"), "line\nbreak");

  const TensorView* z = *reader->Get("z.weight", {3});
  EXPECT_EQ(z->dtype, DType::kF32);
  EXPECT_EQ(std::memcmp(z->data, f32.data(), 12), 0);
  const TensorView* a = *reader->Get("a \"quoted\" name", {2, 2});
  EXPECT_EQ(a->n_elements(), 4);
  EXPECT_EQ(std::memcmp(a->data, bf16.data(), 8), 0);
  EXPECT_EQ((*reader->Get("scalar", {}))->n_bytes, 2);
  EXPECT_EQ((*reader->Get("empty", {0, 7}))->n_bytes, 0);
  EXPECT_LT(z->data, a->data) << "the data must stand in the order given";
  EXPECT_EQ(reader->Find("none"), nullptr);
}

TEST(Safetensors, WritesAHeaderPaddedToEightBytes) {
  const ScratchFolder folder;
  for (int i = 0; i < 9; ++i) {
    const std::string path = folder / "a.safetensors";
    WriteOne(path, std::string(i + 1, 'n'), 1.0f);
    const std::string file = *ReadTextFile(path);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), 8);
    EXPECT_EQ(header_bytes % 8, 0u);
    EXPECT_EQ(file.size(), 8 + header_bytes + 4);
    EXPECT_EQ(file[8], '{');
  }
}

TEST(Safetensors, WriterRefusesWhatAReaderWould) {
  const ScratchFolder folder;
  const std::string path = folder / "a.safetensors";
  const float value = 1.0f;
  const TensorToWrite good = {"a", DType::kF32, {1}, &value};
  const std::vector<std::vector<TensorToWrite>> cases = {
      {good, good},
      {{"__metadata__", DType::kF32, {1}, &value}},
      {{"a", DType::kF32, {-1}, &value}},
      {{"a", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}, &value}},
      {{"a", DType::kF32, {1}, nullptr}},
      {{"\xff", DType::kF32, {1}, &value}},
  };
  for (const auto& tensors : cases) {
    const Status status = WriteSafetensors(path, tensors, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(status), StartsWith(path + ": "));
  }
  EXPECT_EQ(WriteSafetensors(path, {good}, {{"k", "\xff"}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteSafetensors(folder / "none/a", {good}, {}).code(), StatusCode::kNotFound);
  EXPECT_EQ(folder.n_files(), 0);
}

TEST(Safetensors, GetNamesFileTensorAndShapes) {
  const ScratchFolder folder;
  const std::string path = folder / "a.safetensors";
  WriteOne(path, "w", 1.0f);
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Get("v", {1}).status(),
            Status(StatusCode::kNotFound, path + ": no tensor 'v'"));
  EXPECT_EQ(reader->Get("w", {1, 2}).status(),
            Status(StatusCode::kDataLoss, path + ": tensor 'w' has shape [1], expected [1, 2]"));
}

TEST(Safetensors, OtherDTypesDoNotStopLoadingButCannotBeHad) {
  const ScratchFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::string json = R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                           R"("w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  ASSERT_TRUE(WriteFileAtomically(path, FileOf(json, std::string(12, '\0'))).ok());
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Find("ids"), nullptr);
  EXPECT_FALSE(reader->tensors().contains("ids"));
  EXPECT_EQ(reader->Get("ids", {1}).status(),
            Status(StatusCode::kUnimplemented,
                   path + ": tensor 'ids' has dtype I64; supported: BF16, F16, F32"));
  EXPECT_EQ(FirstOf(*reader, "w"), 0.0f);
}

TEST(Safetensors, UnalignedTensorsAreReadable) {
  const ScratchFolder folder;
  const std::string path = folder / "a.safetensors";
  const float value = 2.5f;
  std::string data(5, '\0');
  std::memcpy(data.data() + 1, &value, 4);
  for (int n_spaces = 0; n_spaces < 8; ++n_spaces) {
    const std::string json = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})" +
                             std::string(n_spaces, ' ');
    ASSERT_TRUE(WriteFileAtomically(path, FileOf(json, data)).ok());
    auto reader = SafetensorsReader::OpenFile(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const TensorView* w = reader->Find("w");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w->data) % 4, 0u);
    EXPECT_EQ(FirstOf(*reader, "w"), value);
    reader->ReleasePages(*w);
    EXPECT_EQ(FirstOf(*reader, "w"), value);
  }
}

TEST(Safetensors, ReleasedPagesCanBeReadAgain) {
  const ScratchFolder folder;
  const std::vector<float> values(10'000, 4.0f);
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, {{"w", DType::kF32, {10'000}, values.data()}}, {}).ok());
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const TensorView* w = reader->Find("w");
  reader->ReleasePages(*w);
  EXPECT_EQ(std::memcmp(w->data, values.data(), 40'000), 0);
}

TEST(Safetensors, ATruncatedFileDoesNotOpen) {
  const ScratchFolder folder;
  const std::string path = folder / "a.safetensors";
  WriteOne(path, "w", 1.0f);
  const auto n_bytes = std::filesystem::file_size(path);
  for (uintmax_t shorter = n_bytes; shorter-- > 0;) {
    std::filesystem::resize_file(path, shorter);
    const auto reader = SafetensorsReader::OpenFile(path);
    EXPECT_EQ(reader.status().code(), StatusCode::kDataLoss) << shorter << " of " << n_bytes;
    EXPECT_THAT(MessageOf(reader.status()), StartsWith(path + ": "));
  }
}

TEST(OpenModel, FindsTheOneFile) {
  const ScratchFolder folder;
  EXPECT_EQ(SafetensorsReader::OpenModel(folder / "none").status().code(), StatusCode::kNotFound);
  WriteOne(folder / "basis.safetensors", "basis", 0.0f);
  const auto nothing = SafetensorsReader::OpenModel(folder.path());
  EXPECT_EQ(nothing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(nothing.status()), StartsWith(folder.path() + ": neither"));

  WriteOne(folder / "weights.safetensors", "w", 1.0f);
  EXPECT_EQ(FirstOf(*SafetensorsReader::OpenModel(folder.path()), "w"), 1.0f);
  WriteOne(folder / "more.safetensors", "w", 2.0f);
  const auto several = SafetensorsReader::OpenModel(folder.path());
  EXPECT_EQ(several.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(several.status()), HasSubstr("more.safetensors, weights.safetensors"));
  WriteOne(folder / "model.safetensors", "w", 3.0f);
  EXPECT_EQ(FirstOf(*SafetensorsReader::OpenModel(folder.path()), "w"), 3.0f);
}

TEST(OpenModel, SaysHowToConvertPyTorchWeights) {
  const ScratchFolder folder;
  std::ofstream(folder / "pytorch_model.bin") << "PK";
  const auto reader = SafetensorsReader::OpenModel(folder.path());
  EXPECT_EQ(reader.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(reader.status()), HasSubstr("(pytorch_model.bin)"));
  EXPECT_THAT(MessageOf(reader.status()), HasSubstr("safe_serialization=True"));
}

TEST(OpenModel, TakesEachTensorFromTheShardThatTheIndexNames) {
  const ScratchFolder folder;
  const float one = 1.0f, two = 2.0f;
  ASSERT_TRUE(WriteSafetensors(folder / "s1.safetensors",
                               {{"a", DType::kF32, {1}, &one}, {"b", DType::kF32, {1}, &one}},
                               {{"format", "pt"}})
                  .ok());
  ASSERT_TRUE(WriteSafetensors(folder / "s2.safetensors",
                               {{"b", DType::kF32, {1}, &two}, {"c", DType::kF32, {1}, &two}},
                               {{"format", "other"}})
                  .ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "model.safetensors.index.json",
                                  R"({"metadata":{"total_size":16},"weight_map":)"
                                  R"({"a":"s1.safetensors","b":"s2.safetensors"}})")
                  .ok());
  auto reader = SafetensorsReader::OpenModel(folder.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(FirstOf(*reader, "a"), 1.0f);
  EXPECT_EQ(FirstOf(*reader, "b"), 2.0f);
  EXPECT_EQ(reader->Find("c"), nullptr) << "the index does not list it";
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  EXPECT_THAT(MessageOf(reader->Get("b", {2}).status()), StartsWith(folder / "s2.safetensors"));
}

TEST(OpenModel, RefusesAnIndexThatDoesNotFit) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "sub");
  WriteOne(folder / "sub/s.safetensors", "a", 1.0f);
  WriteOne(folder / "s.safetensors", "a", 1.0f);
  const struct {
    const char* index;
    StatusCode code;
    const char* message;
  } cases[] = {
      {R"({})", StatusCode::kDataLoss, "no object \"weight_map\""},
      {R"([])", StatusCode::kDataLoss, "no object \"weight_map\""},
      {R"({"weight_map":[]})", StatusCode::kDataLoss, "no object \"weight_map\""},
      {R"({"weight_map":{}})", StatusCode::kDataLoss, "lists no tensors"},
      {R"({"weight_map":{"a":1}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":""}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":".."}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":"sub/s.safetensors"}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":"../s.safetensors"}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":"s.safetensors\u0000"}})", StatusCode::kDataLoss, "tensor 'a'"},
      {R"({"weight_map":{"a":"none.safetensors"}})", StatusCode::kNotFound, "none.safetensors"},
      {R"({"weight_map":{"a":"sub"}})", StatusCode::kInvalidArgument, "not a regular file"},
      {R"({"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})", StatusCode::kDataLoss,
       "tensor 'b': model.safetensors.index.json says it is here"},
  };
  for (const auto& damaged : cases) {
    ASSERT_TRUE(WriteFileAtomically(folder / "model.safetensors.index.json", damaged.index).ok());
    const auto reader = SafetensorsReader::OpenModel(folder.path());
    EXPECT_EQ(reader.status().code(), damaged.code) << damaged.index;
    EXPECT_THAT(MessageOf(reader.status()), HasSubstr(damaged.message)) << damaged.index;
  }
}

TEST(OpenModel, ReadsTheEmbeddedModel) {
  auto reader = SafetensorsReader::OpenModel(KVLATHE_SOURCE_DIR "/models/lathe-nano");
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto embedding = reader->Get("model.embed_tokens.weight", {4096, 256});
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_EQ((*embedding)->dtype, DType::kBf16);
}

}  // namespace
}  // namespace kvlathe
