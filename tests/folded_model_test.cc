// A model that turns no rows (GPT-2) with the basis of keys folded into W_Q and W_K: the logits are
// those of the literal decoder, which maps rows and knows no folding, and rows cost nothing between
// their product and attention.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <utility>

#include "kv/retention/retention_methods.h"
#include "loaded_model.h"
#include "model/planned_model.h"
#include "model_shapes.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_retention.h"

namespace kvlathe {
namespace {

using testing::Columns;
using testing::EngineLogits;
using testing::Flat;
using testing::LoadedModel;
using testing::LoadModel;
using testing::Matrix;
using testing::MaxDifference;
using testing::MeanNll;
using testing::NamedShape;
using testing::ReferenceBasis;
using testing::ReferenceModel;

Matrix Inverse(Matrix a) {
  const size_t n = a.size();
  Matrix inverse(n, std::vector<double>(n, 0.0));
  for (size_t i = 0; i < n; ++i) inverse[i][i] = 1;
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t i = column; i < n; ++i) {
      if (std::abs(a[i][column]) > std::abs(a[pivot][column])) pivot = i;
    }
    std::swap(a[pivot], a[column]);
    std::swap(inverse[pivot], inverse[column]);
    for (size_t i = 0; i < n; ++i) {
      const double factor = a[i][column] / a[column][column];
      for (size_t j = 0; j < n; ++j) {
        if (i == column) continue;
        a[i][j] -= factor * a[column][j];
        inverse[i][j] -= factor * inverse[column][j];
      }
    }
    const double scale = 1 / a[column][column];
    for (size_t j = 0; j < n; ++j) {
      a[column][j] *= scale;
      inverse[column][j] *= scale;
    }
  }
  return inverse;
}

struct Bases {
  std::vector<ReferenceBasis> reference;
  ModelBasis model;
};

// Random pairs D and E with D E^T = I at full width, cut to random ranks; values as they come.
Bases RandomPairs(const ReferenceModel& m, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 0.1);
  const auto d = static_cast<size_t>(m.head_dim);
  Bases bases;
  bases.reference = testing::RandomBases(m, seed);
  std::vector<CutColumns> cut;
  for (ReferenceBasis& basis : bases.reference) {
    const size_t rank = basis.key[0].size();
    Matrix left(d, std::vector<double>(d)), right = left;
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) left[i][j] = normal(random) + (i == j ? 1 : 0);
    }
    const Matrix inverse = Inverse(left);
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) right[i][j] = inverse[j][i];
    }
    basis.query = Columns(left, 0, rank);
    basis.key = Columns(right, 0, rank);
    cut.push_back({Flat(Columns(left, rank, d)), Flat(Columns(right, rank, d))});
  }
  bases.model = testing::ToModelBasis(m, bases.reference);
  for (size_t h = 0; h < cut.size(); ++h) bases.model.heads[h].cut = cut[h];
  return bases;
}

class FoldedModelTest : public ::testing::TestWithParam<NamedShape> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory(std::string("folded_") + GetParam().name);
    testing::RandomModelShape shape = GetParam().shape;
    shape.head_dim = 32;  // ranks of 16 and of 32
    shape.hidden = 4 * shape.head_dim;
    reference_ = testing::WriteRandomModel(shape, directory_, 19);
    std::mt19937_64 random(7);
    for (int i = 0; i < 90; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  ReferenceModel reference_;
  std::vector<int> ids_;
};

TEST_P(FoldedModelTest, MatchesTheUnfoldedDecoderAndTurnsNothing) {
  const Bases bases = RandomPairs(reference_, 4);
  for (const int n_sink : {0, 4}) {
    const Matrix expected = testing::ReferenceLogits(reference_, ids_, bases.reference, n_sink);
    for (const Isa isa : AvailableIsas()) {
      SCOPED_TRACE(fmt::format("{} n_sink {}", IsaName(isa), n_sink));
      LoadedModel f32 = LoadModel(directory_, DType::kF32, isa, &bases.model, n_sink);
      EXPECT_LT(MaxDifference(EngineLogits(&f32, ids_, {90}), expected), 1e-3);
      // Chunks that cut the sink, blocks and single tokens.
      EXPECT_LT(MaxDifference(EngineLogits(&f32, ids_, {2, 1, 30, 1, 40, 5}), expected), 1e-3);
      EXPECT_EQ(f32.model->profile().rotate, 0);
      EXPECT_GT(f32.model->profile().linear, 0);
      EXPECT_EQ(f32.model->basis_bytes(), 0);
      LoadedModel bf16 = LoadModel(directory_, DType::kBf16, isa, &bases.model, n_sink);
      EXPECT_NEAR(MeanNll(EngineLogits(&bf16, ids_, {64, 1}), ids_), MeanNll(expected, ids_), 5e-2);
      EXPECT_EQ(bf16.model->profile().rotate, 0);
    }
  }
}

// Without the columns that ranks cut off, sinks need queries of their own: the basis stays online.
TEST_P(FoldedModelTest, IsTheOnlineRotation) {
  const Bases bases = RandomPairs(reference_, 4);
  ModelBasis online = bases.model;
  for (HeadBasis& head : online.heads) head.cut.reset();
  LoadedModel a = LoadModel(directory_, DType::kF32, AvailableIsas().back(), &bases.model, 4);
  LoadedModel b = LoadModel(directory_, DType::kF32, AvailableIsas().back(), &online, 4);
  EXPECT_LT(MaxDifference(EngineLogits(&a, ids_, {64, 1}), EngineLogits(&b, ids_, {64, 1})), 1e-3);
  EXPECT_EQ(a.model->profile().rotate, 0);
  EXPECT_GT(b.model->profile().rotate, 0);
}

// Scores do not show what is subtracted from all keys; the cache does.
TEST_P(FoldedModelTest, StoresTheRowsOfTheOnlineRotation) {
  const Bases bases = RandomPairs(reference_, 6);
  ModelBasis online = bases.model;
  for (HeadBasis& head : online.heads) head.cut.reset();
  std::vector<std::vector<float>> stored;  // of both models, the first block of every head
  for (const ModelBasis* basis : {&bases.model, &std::as_const(online)}) {
    LoadedModel loaded = LoadModel(directory_, DType::kF32, AvailableIsas().back(), basis, 4);
    const CacheLayout& layout = loaded.model->layout();
    SequenceCache cache(&layout, loaded.blocks.get());
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    ASSERT_TRUE(cache.Extend(static_cast<int>(tokens.size())).ok());
    const SequenceStep step{&cache, tokens, SequenceStep::Logits::kNone};
    ASSERT_TRUE(loaded.model->Forward({&step, 1}).ok());
    std::vector<float>& rows = stored.emplace_back();
    for (int l = 0; l < layout.n_layers; ++l) {
      for (int g = 0; g < layout.n_kv_heads; ++g) {
        const BlockShape& shape = layout.shape(l, g);
        std::vector<float> block(kBlockSize * (shape.rank_k + shape.rank_v));
        cache.device().Download({cache.head(l, g).blocks()[0]},
                                std::as_writable_bytes(std::span(block)));
        rows.insert(rows.end(), block.begin(), block.end());
      }
    }
  }
  ASSERT_EQ(stored[0].size(), stored[1].size());
  for (size_t i = 0; i < stored[0].size(); ++i) {
    ASSERT_NEAR(stored[0][i], stored[1][i], 1e-3) << "at " << i;
  }
}

// Folded at full width, a prompt of whole keys is one of the basis in all its columns, of which the
// first stay where it ends: what the literal decoder keeps.
TEST_P(FoldedModelTest, ReadsPromptsWithWholeKeys) {
  constexpr int kPrompt = 70;
  const Bases bases = RandomPairs(reference_, 4);
  for (const int n_sink : {0, 4}) {
    RetentionPlan plan = *RetentionPlanOf(*Spec::Parse("fdc+h2o(keep=0.5,score=exact)"));
    plan.run = 32;
    testing::RetainLiterally retain({.name = "h2o",
                                     .keep = 0.5,
                                     .recent = 0.5,
                                     .run = plan.run,
                                     .n_sink = n_sink,
                                     .n_prompt = kPrompt},
                                    reference_.n_layers, reference_.n_kv_heads);
    std::vector<int> n_seen(reference_.n_layers);
    const Matrix expected = testing::ReferenceLogits(
        reference_, ids_, bases.reference, n_sink,
        [&](int layer, testing::ReferenceRows* rows) {
          retain(layer, rows);
          if (++n_seen[layer] != kPrompt) return;
          testing::MapKeys(reference_, layer, bases.reference, n_sink, rows);
        },
        nullptr, kPrompt);
    for (const Isa isa : AvailableIsas()) {
      SCOPED_TRACE(fmt::format("{} n_sink {}", IsaName(isa), n_sink));
      LoadedModel loaded = LoadModel(directory_, DType::kF32, isa);
      PlanParts parts = PartsOf(&bases.model, n_sink);
      parts.retention = plan;
      auto model = CreateModel(loaded.weights, std::move(parts));
      ASSERT_TRUE(model.ok()) << model.status();
      loaded.model = *std::move(model);
      for (const int chunk : {64, 11}) {
        const Matrix logits = EngineLogits(&loaded, ids_, {chunk}, kPrompt);
        EXPECT_LT(MaxDifference(logits, expected), 1e-3) << chunk;
      }
      EXPECT_EQ(loaded.model->profile().rotate, 0);
    }
  }
}

TEST_P(FoldedModelTest, BatchedIsSingle) {
  const Bases bases = RandomPairs(reference_, 5);
  for (const int n_sink : {0, 4}) {
    LoadedModel loaded =
        LoadModel(directory_, DType::kF32, AvailableIsas().back(), &bases.model, n_sink);
    std::vector<std::unique_ptr<SequenceCache>> caches;
    std::vector<std::vector<int>> texts;
    std::vector<std::vector<int32_t>> tokens;
    for (const int n : {70, 3, 33}) {
      texts.emplace_back(ids_.begin() + n / 7, ids_.begin() + n / 7 + n);
      tokens.emplace_back(texts.back().begin(), texts.back().end());
      caches.push_back(
          std::make_unique<SequenceCache>(&loaded.model->layout(), loaded.blocks.get()));
      ASSERT_TRUE(caches.back()->Extend(n).ok());
    }
    std::vector<SequenceStep> steps;
    for (size_t s = 0; s < texts.size(); ++s) {
      steps.push_back({caches[s].get(), tokens[s], SequenceStep::Logits::kLast});
    }
    ASSERT_TRUE(loaded.model->Forward(steps).ok());
    Matrix batched;
    for (size_t s = 0; s < texts.size(); ++s) {
      const auto row = loaded.model->logits(static_cast<int64_t>(s));
      batched.emplace_back(row.begin(), row.end());
    }
    for (size_t s = 0; s < texts.size(); ++s) {
      const Matrix single = EngineLogits(&loaded, texts[s], {512});
      EXPECT_LT(MaxDifference({batched[s]}, {single.back()}), 1e-3) << s << " n_sink " << n_sink;
    }
  }
}

std::vector<NamedShape> ShapesThatTurnNothing() {
  std::vector<NamedShape> shapes;
  for (const NamedShape& shape : testing::ModelShapes()) {
    if (shape.shape.model_type == "gpt2") shapes.push_back(shape);
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, FoldedModelTest, ::testing::ValuesIn(ShapesThatTurnNothing()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvlathe
