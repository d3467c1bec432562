#include "io/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "io/gguf/gguf_damaged_files.h"
#include "io/gguf/gguf_test_writer.h"
#include "io/gguf/opened_gguf.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// A file of the writer, opened.
class OpenedGguf {
 public:
  explicit OpenedGguf(const GgufTestWriter& writer) : path_(folder_ / "m.gguf") {
    writer.Write(path_);
  }
  const std::string& path() const { return path_; }
  GgufFile Open() const { return OpenOrDie(path_); }

 private:
  const ScratchFolder folder_;
  const std::string path_;
};

void ExpectError(const Status& status, StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr(message));
}

TEST(Gguf, ReadsBackWhatTheWriterWrote) {
  GgufTestWriter writer;
  writer.AddText("general.architecture", "llama");
  writer.AddInteger("llama.block_count", 2);
  writer.AddTexts("tokens", {"<s>", "a"});
  writer.AddF32("norm", {2}, {1.5f, -2.0f});
  writer.AddF32("output", {2, 3}, {1, 2, 3, 4, 5, 6});
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  EXPECT_EQ(file.path(), opened.path());
  EXPECT_EQ(file.metadata().size(), 3u);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_TRUE(file.UnreadableTensors().empty());
  EXPECT_EQ(*file.TextOr("general.architecture", ""), "llama");
  EXPECT_THAT(**file.Texts("tokens"), ElementsAre("<s>", "a"));
  const GgufTensor* output = *file.GetTensor("output", {2, 3});
  EXPECT_EQ(output->name, "output");
  EXPECT_EQ(output->n_elements(), 6);
  EXPECT_EQ(output->n_bytes, 24);
  const auto expect_values = [&] {
    float values[6];
    DequantizeBlocks(output->type, output->data, 6, values);
    EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  };
  expect_values();
  file.ReleasePages(*output);
  expect_values();
}

TEST(Gguf, StaysValidWhenItIsMoved) {
  GgufTestWriter writer;
  writer.AddText("k", "text");
  writer.AddF32("t", {1}, {5});
  const OpenedGguf opened(writer);
  GgufFile first = opened.Open();
  const GgufFile second = std::move(first);
  EXPECT_EQ(*second.TextOr("k", ""), "text");
  EXPECT_EQ(*reinterpret_cast<const float*>(second.FindTensor("t")->data), 5.0f);
}

TEST(Gguf, AnAbsentKeyGivesTheFallback) {
  const OpenedGguf opened{GgufTestWriter()};
  const GgufFile file = opened.Open();
  EXPECT_EQ(file.FindValue("k"), nullptr);
  EXPECT_EQ(*file.TextOr("k", "fallback"), "fallback");
  EXPECT_EQ(*file.IntegerOr("k", -7, 0, 1), -7);
  EXPECT_EQ(*file.NumberOr("k", 0.25, 1, 2), 0.25);
  EXPECT_EQ(*file.BoolOr("k", true), true);
  EXPECT_EQ(*file.Texts("k"), nullptr);
  EXPECT_EQ(*file.Integers("k"), nullptr);
  EXPECT_EQ(*file.Numbers("k"), nullptr);
}

TEST(Gguf, AValueOfAnotherTypeIsAnErrorWithFileAndKey) {
  GgufTestWriter writer;
  writer.AddText("text", "7");
  writer.AddInteger("integer", 7);
  writer.AddFloat("real", 7.5);
  writer.AddBool("truth", true);
  writer.AddIntegers("integers", {7});
  writer.AddFloats("reals", {7});
  writer.AddTexts("texts", {"7"});
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  const auto expect = [&](const Status& status, const std::string& message) {
    ExpectError(status, StatusCode::kDataLoss, opened.path() + ": " + message);
  };
  expect(file.TextOr("integer", "").status(), "key 'integer' is an integer, but must be a text");
  expect(file.IntegerOr("text", 0, 0, 9).status(), "key 'text' is a text, but must be an integer");
  expect(file.IntegerOr("real", 0, 0, 9).status(),
         "key 'real' is a floating-point number, but must be an integer");
  expect(file.IntegerOr("truth", 0, 0, 9).status(),
         "key 'truth' is true or false, but must be an integer");
  expect(file.NumberOr("texts", 0, 0, 9).status(),
         "key 'texts' is an array of texts, but must be a number");
  expect(file.BoolOr("integer", false).status(),
         "key 'integer' is an integer, but must be true or false");
  expect(file.Texts("integers").status(),
         "key 'integers' is an array of integers, but must be an array of texts");
  expect(file.Integers("reals").status(),
         "key 'reals' is an array of numbers, but must be an array of integers");
  expect(file.Numbers("text").status(), "key 'text' is a text, but must be an array of numbers");
}

TEST(Gguf, ANumberOutsideItsRangeIsAnError) {
  GgufTestWriter writer;
  writer.AddInteger("n", 9);
  writer.AddInteger("least", kMin, GgufValueType::kInt64);
  writer.AddFloat("x", 1e-5, GgufValueType::kFloat64);
  writer.AddFloat("nan", std::numeric_limits<double>::quiet_NaN());
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  EXPECT_EQ(*file.IntegerOr("n", 0, 9, 9), 9);
  EXPECT_EQ(*file.IntegerOr("least", 0, kMin, kMax), kMin);
  EXPECT_EQ(*file.NumberOr("x", 0, 1e-5, 1e-5), 1e-5);
  EXPECT_EQ(*file.NumberOr("n", 0, 0, 10), 9.0) << "integers count as numbers";
  ExpectError(file.IntegerOr("n", 0, 0, 8).status(), StatusCode::kDataLoss,
              opened.path() + ": key 'n' is 9, but must be from 0 to 8");
  ExpectError(file.IntegerOr("n", 0, 10, 99).status(), StatusCode::kDataLoss, "from 10 to 99");
  ExpectError(file.NumberOr("x", 0, 1, 2).status(), StatusCode::kDataLoss,
              "key 'x' is 1e-05, but must be from 1 to 2");
  ExpectError(file.NumberOr("nan", 0, -1e300, 1e300).status(), StatusCode::kDataLoss,
              "key 'nan' is nan, but must be");
}

TEST(Gguf, AnEmptyArrayIsAnEmptyArrayOfEveryType) {
  GgufTestWriter writer;
  writer.AddTexts("texts", {});
  writer.AddFloats("reals", {});
  writer.AddText("text", "");
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  for (const char* key : {"texts", "reals"}) {
    EXPECT_TRUE((*file.Texts(key))->empty());
    EXPECT_TRUE((*file.Integers(key))->empty());
    EXPECT_TRUE((*file.Numbers(key))->empty());
  }
  ExpectError(file.Texts("text").status(), StatusCode::kDataLoss, "key 'text' is a text");
}

TEST(Gguf, ATensorThatIsAbsentOrOfAnotherShapeIsNamed) {
  GgufTestWriter writer;
  writer.AddF32("t", {2, 3}, std::vector<float>(6));
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  EXPECT_EQ(file.FindTensor("u"), nullptr);
  ExpectError(file.GetTensor("u", {1}).status(), StatusCode::kNotFound,
              opened.path() + ": no tensor 'u'");
  ExpectError(file.GetTensor("t", {3, 2}).status(), StatusCode::kDataLoss,
              opened.path() + ": tensor 't' has shape [2, 3], expected [3, 2]");
}

TEST(Gguf, ATensorOfATypeThatIsNotReadIsRefusedByTheNameOfTheType) {
  GgufTestWriter writer;
  writer.AddF32("read", {1}, {1});
  writer.AddEntry("codebook", 16, {256}, 32);
  writer.AddEntry("new", 99, {1}, 128);
  writer.AddData(std::string(200, '\0'));
  const OpenedGguf opened(writer);
  const GgufFile file = opened.Open();
  EXPECT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.FindTensor("codebook"), nullptr);
  EXPECT_THAT(file.UnreadableTensors(),
              ElementsAre("'codebook' is of type IQ2_XXS", "'new' is of type 99"));
  ExpectError(file.GetTensor("codebook", {256}).status(), StatusCode::kUnimplemented,
              opened.path() + ": tensor 'codebook' is of type IQ2_XXS, which is not read");
}

TEST(Gguf, OnlyAFileThatBeginsAsOneLooksLikeGguf) {
  const ScratchFolder folder;
  GgufTestWriter(1).Write(folder / "v1");
  std::ofstream(folder / "text") << "GGML";
  std::ofstream(folder / "short") << "GGU";
  EXPECT_TRUE(LooksLikeGguf(folder / "v1"));
  EXPECT_FALSE(LooksLikeGguf(folder / "text"));
  EXPECT_FALSE(LooksLikeGguf(folder / "short"));
  EXPECT_FALSE(LooksLikeGguf(folder / "absent"));
  EXPECT_FALSE(LooksLikeGguf(folder.path()));
}

TEST(Gguf, DamagedFilesOnDiskGiveTheSameErrorsAsInMemory) {
  const ScratchFolder folder;
  for (const DamagedGguf& damaged : DamagedGgufFiles()) {
    const std::string path = folder / (damaged.name + ".gguf");
    std::ofstream(path, std::ios::binary) << damaged.bytes;
    const Status status = GgufFile::Open(path).status();
    EXPECT_EQ(status.code(), damaged.code) << damaged.name;
    EXPECT_THAT(MessageOf(status), StartsWith(path + ": " + damaged.message));
  }
  ExpectError(GgufFile::Open(folder / "absent.gguf").status(), StatusCode::kNotFound,
              folder / "absent.gguf");
}

// Parts of a split model in a folder, each with one tensor, "t0" and so on, of its number.
class SplitModel {
 public:
  explicit SplitModel(int n_parts) : n_parts_(n_parts) {
    for (int i = 0; i < n_parts; ++i) WritePart(i, i, n_parts, fmt::format("t{}", i));
  }
  std::string PathOf(int part) const {
    return folder_ / fmt::format("m-{:05}-of-{:05}.gguf", part + 1, n_parts_);
  }
  const ScratchFolder& folder() const { return folder_; }
  // Part `part` as it should not be.
  void WritePart(int part, int says_part, int says_count, const std::string& tensor) const {
    GgufTestWriter writer;
    writer.AddInteger("split.no", says_part, GgufValueType::kUint16);
    writer.AddInteger("split.count", says_count, GgufValueType::kUint16);
    writer.AddInteger("split.tensors.count", n_parts_, GgufValueType::kInt32);
    writer.AddText(part == 0 ? "general.name" : "other", "model");
    writer.AddF32(tensor, {1}, {static_cast<float>(part)});
    writer.Write(PathOf(part));
  }

 private:
  const ScratchFolder folder_;
  const int n_parts_;
};

TEST(Gguf, TheFirstOfSeveralPartsOpensAll) {
  const SplitModel model(3);
  const GgufFile file = OpenOrDie(model.PathOf(0));
  EXPECT_EQ(file.tensors().size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const GgufTensor* tensor = *file.GetTensor(fmt::format("t{}", i), {1});
    EXPECT_EQ(*reinterpret_cast<const float*>(tensor->data), static_cast<float>(i));
    file.ReleasePages(*tensor);
  }
  EXPECT_EQ(*file.TextOr("general.name", ""), "model");
  EXPECT_EQ(file.FindValue("other"), nullptr) << "the metadata are those of the first part";
  ExpectError(file.GetTensor("t2", {2}).status(), StatusCode::kDataLoss, model.PathOf(2));
}

TEST(Gguf, AnotherPartSaysToOpenTheFirst) {
  const SplitModel model(3);
  ExpectError(GgufFile::Open(model.PathOf(1)).status(), StatusCode::kInvalidArgument,
              model.PathOf(1) + ": part 2 of 3 of a model; open the first, " + model.PathOf(0));
}

TEST(Gguf, AMissingPartIsNamed) {
  const SplitModel model(3);
  std::filesystem::remove(model.PathOf(2));
  ExpectError(GgufFile::Open(model.PathOf(0)).status(), StatusCode::kNotFound,
              model.PathOf(2) + ": no such file; it is part 3 of 3 of the model that begins with " +
                  model.PathOf(0));
}

TEST(Gguf, APartUnderAnotherNameAsksForItsNameBack) {
  const SplitModel model(2);
  const std::string renamed = model.folder() / "renamed.gguf";
  std::filesystem::rename(model.PathOf(0), renamed);
  ExpectError(GgufFile::Open(renamed).status(), StatusCode::kInvalidArgument,
              renamed +
                  ": part 1 of 2 of a model, but its name does not end with "
                  "'-00001-of-00002.gguf'");
}

TEST(Gguf, PartsThatDoNotBelongTogetherAreRefused) {
  const SplitModel model(3);
  const auto expect = [&](const std::string& message) {
    ExpectError(GgufFile::Open(model.PathOf(0)).status(), StatusCode::kDataLoss, message);
  };
  model.WritePart(1, 1, 3, "t0");
  expect(model.PathOf(1) + ": tensor 't0' is also in " + model.PathOf(0));
  model.WritePart(1, 2, 3, "t1");
  expect(model.PathOf(1) + ": says it is part 3 of 3 with 3 tensors in all, but");
  model.WritePart(1, 1, 4, "t1");
  expect(model.PathOf(1) + ": says it is part 2 of 4 with 3 tensors in all, but");
  model.WritePart(1, 3, 3, "t1");
  expect(model.PathOf(1) + ": 'split.no' is 3 and 'split.count' is 3, which name no part");
  std::ofstream(model.PathOf(1)) << "text";
  expect(model.PathOf(1) + ": not a GGUF file");
}

TEST(Gguf, PartsWithOtherThanTheirCountOfTensorsAreRefused) {
  const ScratchFolder folder;
  for (int i = 0; i < 2; ++i) {
    GgufTestWriter writer;
    writer.AddInteger("split.no", i);
    writer.AddInteger("split.count", 2);
    writer.AddInteger("split.tensors.count", 3);
    writer.AddF32(fmt::format("t{}", i), {1}, {1});
    writer.Write(folder / fmt::format("m-{:05}-of-00002.gguf", i + 1));
  }
  ExpectError(GgufFile::Open(folder / "m-00001-of-00002.gguf").status(), StatusCode::kDataLoss,
              "the 2 parts have 2 tensors, but 'split.tensors.count' is 3");
}

TEST(Gguf, AModelSplitInOnePartIsWhole) {
  GgufTestWriter writer;
  writer.AddInteger("split.no", 0);
  writer.AddInteger("split.count", 1);
  writer.AddInteger("split.tensors.count", 0);
  const OpenedGguf opened(writer);
  EXPECT_TRUE(GgufFile::Open(opened.path()).ok());
}

TEST(Gguf, SplitKeysThatAreNoIntegersAreNamed) {
  GgufTestWriter writer;
  writer.AddText("split.count", "2");
  const OpenedGguf opened(writer);
  ExpectError(GgufFile::Open(opened.path()).status(), StatusCode::kDataLoss,
              "key 'split.count' is a text, but must be an integer");
}

}  // namespace
}  // namespace kvlathe
