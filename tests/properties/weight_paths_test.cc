// Weights in blocks, in whole models: what a file stores in blocks is kept, folds are dense,
// and rows that are rounded to 8 bits change predictions by little.
//
// KVLATHE_WEIGHTS_MODEL names a GGUF file that is measured too, with lines on standard output.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "io/files.h"
#include "io/gguf/ggml_types_quantize.h"
#include "loaded_model.h"
#include "model/stored/block_types.h"
#include "model/stored/weight_reader.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"
#include "tokenizer/gguf/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using testing::LoadedModel;
using testing::LoadModel;
using testing::Matrix;

const char kNano[] = KVLATHE_SOURCE_DIR "/models/lathe-nano";

LoadedModel Load(const std::string& model, const NumberTypes& types, bool exact_rows) {
  const Isa isa = AvailableIsas().back();
  return LoadModel(model, types, isa, nullptr, 0, 1024, [&](ThreadPool* pool) {
    return MakeMachine(pool, isa, {.weights = exact_rows});
  });
}

std::vector<int> NanoText(int n) {
  const auto tokenizer = Tokenizer::Load(kNano);
  EXPECT_TRUE(tokenizer.ok());
  const auto text = ReadTextFile(std::string(kNano) + "/sample.txt");
  EXPECT_TRUE(text.ok());
  const std::vector<int32_t> ids = (*tokenizer)->Tokenize(text->substr(0, 6 * n), true);
  return std::vector<int>(ids.begin(), ids.begin() + n);
}

std::vector<double> LogProbabilities(const std::vector<double>& logits) {
  double max = logits[0], total = 0;
  for (const double x : logits) max = std::max(max, x);
  for (const double x : logits) total += std::exp(x - max);
  std::vector<double> result;
  for (const double x : logits) result.push_back(x - max - std::log(total));
  return result;
}

// Nats per token, of the predictions of `other` in place of `reference`.
double MeanKl(const Matrix& reference, const Matrix& other) {
  double sum = 0;
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<double> p = LogProbabilities({reference[t].begin(), reference[t].end()});
    const std::vector<double> q = LogProbabilities({other[t].begin(), other[t].end()});
    for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(reference.size());
}

NumberTypes Of(WeightType weights, DType activations) {
  return NumberTypes(weights, activations, activations);
}

class WeightTypesTest : public ::testing::TestWithParam<WeightType> {};

// F32 rows meet the numbers that the blocks stand for, so the reference is of the same weights.
TEST_P(WeightTypesTest, RoundedRowsHardlyChangePredictions) {
  const WeightType type = GetParam();
  const std::vector<int> ids = NanoText(200);
  LoadedModel reference = Load(kNano, Of(type, DType::kF32), false);
  EXPECT_EQ(reference.weights->layer(0).qk.type(), type);
  const Matrix expected = EngineLogits(&reference, ids, {64});
  LoadedModel rounded = Load(kNano, Of(type, DType::kBf16), false);
  const double kl = MeanKl(expected, EngineLogits(&rounded, ids, {64, 1}));
  LoadedModel exact = Load(kNano, Of(type, DType::kBf16), true);
  const double kl_exact = MeanKl(expected, EngineLogits(&exact, ids, {64, 1}));
  RecordProperty("kl", fmt::format("{:.6f}", kl));
  EXPECT_LT(kl, 0.002);
  EXPECT_LT(kl_exact, 0.0005);
  EXPECT_NE(kl, kl_exact);  // another path
}

INSTANTIATE_TEST_SUITE_P(Types, WeightTypesTest,
                         ::testing::Values(WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ5_1,
                                           WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kIq4Xs,
                                           WeightType::kMxfp4),
                         [](const auto& type) { return std::string(WeightTypeName(type.param)); });

TEST(WeightPathsTest, WhatDoesNotFitBecomesWhatDoes) {
  EXPECT_EQ(FittingType(WeightType::kQ4_K, 512, WeightType::kBf16), WeightType::kQ4_K);
  EXPECT_EQ(FittingType(WeightType::kQ4_K, 576, WeightType::kBf16), WeightType::kQ8_0);
  EXPECT_EQ(FittingType(WeightType::kQ4_0, 576, WeightType::kBf16), WeightType::kQ4_0);
  EXPECT_EQ(FittingType(WeightType::kQ4_0, 40, WeightType::kBf16), WeightType::kBf16);
  EXPECT_EQ(FittingType(WeightType::kF32, 40, WeightType::kBf16), WeightType::kF32);
}

// Two matrices of 64 outputs and inputs, a in Q4_0 and b in Q5_0.
class TwoTypes : public TensorSource {
 public:
  TwoTypes() {
    std::vector<float> values(kValues);
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    for (const GgmlType type : {GgmlType::kQ4_0, GgmlType::kQ5_0}) {
      const GgmlLayout& layout = LayoutOf(type);
      stored_.emplace_back(kValues / layout.block_values * layout.block_bytes);
      QuantizeBlocks(type, values.data(), kValues, stored_.back().data());
    }
  }
  bool Has(const std::string&) const override { return true; }
  std::optional<GgmlType> BlocksOf(const std::string& name) const override {
    return name == "a.weight" ? GgmlType::kQ4_0 : GgmlType::kQ5_0;
  }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    const std::vector<std::byte>& bytes = stored_[name == "a.weight" ? 0 : 1];
    return StoredTensor{DType::kF32, BlocksOf(name), shape, bytes.data(),
                        static_cast<int64_t>(bytes.size())};
  }
  void Done(const StoredTensor&) override {}
  bool is_mapped() const override { return true; }

  static constexpr int64_t kValues = 64 * 64;

 private:
  std::vector<std::vector<std::byte>> stored_;
};

Projection Whole(const std::string& tensor) {
  return {.tensor = tensor, .n_stored = 64, .n_in = 64, .runs = {{0, 64}}};
}

TEST(WeightPathsTest, PartsInDifferentBlocksBecomeQ8_0AndAreCounted) {
  ThreadPool pool(2);
  const auto machine = MakeMachine(&pool, AvailableIsas().back());
  WeightReader reader(std::make_unique<TwoTypes>());
  NumberTypes kept = DType::kBf16;
  kept.keeps_blocks = true;
  const auto alone = reader.Pack({Whole("a")}, kept, &machine->residents(), &pool);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->type(), WeightType::kQ4_0);
  EXPECT_TRUE(reader.remade().empty());
  const auto mixed = reader.Pack({Whole("a"), Whole("b")}, kept, &machine->residents(), &pool);
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->type(), WeightType::kQ8_0);
  ASSERT_EQ(reader.remade().size(), 2u);
  EXPECT_EQ(reader.remade()[0].from, GgmlType::kQ4_0);
  EXPECT_EQ(reader.remade()[0].stored_bytes, 64 * 2 * 18);
  EXPECT_EQ(reader.remade()[0].bytes, 64 * 2 * 34);
  EXPECT_EQ(reader.remade()[1].from, GgmlType::kQ5_0);
  std::vector<float> expected(64), row(64);
  TwoTypes source;
  source.Get("b.weight", {64, 64})->Read(5 * 64, 64, expected.data());
  mixed->ReadRows(64 + 5, 1, row.data());
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(row[i], expected[i], 0.005);
  // A type that was asked for holds whatever the file has.
  NumberTypes dense = DType::kBf16;
  EXPECT_EQ(reader.TypeOf({Whole("a")}, dense), WeightType::kBf16);
}

// Maps are folded in F32 and kept in 16 bits, whatever the matrix itself has.
TEST(WeightPathsTest, FoldsAreDense) {
  const std::string directory = testing::FreshDirectory("folded_blocks");
  const testing::ReferenceModel model = testing::WriteRandomModel(
      {.hidden = 128, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .ffn = 128}, directory, 3);
  const auto bases = testing::RandomBases(model, 5);
  const ModelBasis basis = testing::ToModelBasis(model, bases);
  ThreadPool pool(2);
  LoadedModel loaded = Load(directory, Of(WeightType::kQ4_0, DType::kBf16), false);
  const auto whole = loaded.weights->FoldValues(0, nullptr, &pool);
  const auto folded = loaded.weights->FoldValues(0, &basis, &pool);
  ASSERT_TRUE(whole.ok() && folded.ok());
  EXPECT_EQ((*whole)->v.type(), WeightType::kQ4_0);
  EXPECT_EQ((*whole)->o.type(), WeightType::kQ4_0);
  EXPECT_EQ((*folded)->v.type(), WeightType::kBf16);
  EXPECT_EQ((*folded)->o.type(), WeightType::kBf16);
  std::filesystem::remove_all(directory);
}

TEST(WeightPathsTest, RealModel) {
  const char* const path = std::getenv("KVLATHE_WEIGHTS_MODEL");
  if (path == nullptr) GTEST_SKIP() << "KVLATHE_WEIGHTS_MODEL names no GGUF file";
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = LoadGgufTokenizer(*file, {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = ReadTextFile(KVLATHE_SOURCE_DIR "/share/sample.txt");
  ASSERT_TRUE(text.ok());
  std::vector<int32_t> tokens = (*tokenizer)->Tokenize(*text, true);
  tokens.resize(std::min<size_t>(tokens.size(), 512));
  const std::vector<int> ids(tokens.begin(), tokens.end());
  const auto logits = [&](DType activations, bool exact_rows) {
    NumberTypes types = activations;
    types.keeps_blocks = true;
    LoadedModel loaded = Load(path, types, exact_rows);
    return EngineLogits(&loaded, ids, {256});
  };
  const Matrix expected = logits(DType::kF32, false);
  const double kl = MeanKl(expected, logits(DType::kBf16, false));
  const double kl_exact = MeanKl(expected, logits(DType::kBf16, true));
  fmt::print("{}: {} tokens, KL of rows of 8 bits {:.6f}, of 16 bits {:.6f}\n", path, ids.size(),
             kl, kl_exact);
  EXPECT_LT(kl, 0.004);
  EXPECT_LT(kl_exact, 0.001);
}

}  // namespace
}  // namespace kvlathe
