// The engine's forward against a literal decoder in double, on random models in the real file
// format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "analysis/bases/basis_methods.h"
#include "analysis/bases/hadamard.h"
#include "base/random.h"
#include "calibration/calibrate.h"
#include "calibration/gradients/decoder_gradients.h"
#include "format/keys.h"
#include "loaded_model.h"
#include "model/weight_grams.h"
#include "model_shapes.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_family.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using testing::LoadedModel;
using testing::LoadModel;
using testing::MaxDifference;
using testing::MeanNll;
using testing::NamedShape;
using testing::RandomModelShape;
using testing::ReferenceBasis;
using testing::ReferenceModel;

std::vector<int> RandomIds(int n, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> ids(n);
  for (int& id : ids) id = static_cast<int>(random() % vocab);
  return ids;
}

class RandomModelTest : public ::testing::TestWithParam<NamedShape> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory(std::string("whole_model_") + GetParam().name);
    reference_ = testing::WriteRandomModel(GetParam().shape, directory_, 17);
    ids_ = RandomIds(90, reference_.vocab, 5);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void MatchesTheUnfoldedDecoder(const std::vector<ReferenceBasis>& bases, bool is_joined = false);
  void BatchedIsSingle(const std::vector<ReferenceBasis>& bases, bool is_joined = false);

  std::string directory_;
  ReferenceModel reference_;
  std::vector<int> ids_;
};

TEST_P(RandomModelTest, MatchesTheLiteralDecoder) {
  const testing::Matrix expected = testing::ReferenceLogits(reference_, ids_);
  for (Isa isa : AvailableIsas()) {
    LoadedModel f32 = LoadModel(directory_, DType::kF32, isa);
    EXPECT_LT(MaxDifference(EngineLogits(&f32, ids_, {90}), expected), 1e-3) << IsaName(isa);
    LoadedModel bf16 = LoadModel(directory_, DType::kBf16, isa);
    EXPECT_NEAR(MeanNll(EngineLogits(&bf16, ids_, {90}), ids_), MeanNll(expected, ids_), 5e-2)
        << IsaName(isa);
  }
}

TEST_P(RandomModelTest, FoldedBasisWithSinksMatchesTheUnfoldedDecoder) {
  MatchesTheUnfoldedDecoder(testing::RandomBases(reference_, 23));
}

TEST_P(RandomModelTest, LatentKeysMatchTheUnfoldedDecoder) {
  MatchesTheUnfoldedDecoder(testing::RandomLatentBases(reference_, 27));
}

void RandomModelTest::MatchesTheUnfoldedDecoder(const std::vector<ReferenceBasis>& bases,
                                                bool is_joined) {
  const ModelBasis basis = is_joined ? testing::ToJoinedBasis(reference_, bases)
                                     : testing::ToModelBasis(reference_, bases);
  for (int n_sink : {0, 4}) {
    const testing::Matrix expected = testing::ReferenceLogits(reference_, ids_, bases, n_sink);
    for (Isa isa : AvailableIsas()) {
      SCOPED_TRACE(fmt::format("{} n_sink {}", IsaName(isa), n_sink));
      LoadedModel f32 = LoadModel(directory_, DType::kF32, isa, &basis, n_sink);
      EXPECT_LT(MaxDifference(EngineLogits(&f32, ids_, {90}), expected), 1e-3);
      // Chunks that cut the sink, blocks and single tokens.
      EXPECT_LT(MaxDifference(EngineLogits(&f32, ids_, {2, 1, 30, 1, 40, 5}), expected), 1e-3);
      LoadedModel bf16 = LoadModel(directory_, DType::kBf16, isa, &basis, n_sink);
      EXPECT_NEAR(MeanNll(EngineLogits(&bf16, ids_, {64, 1}), ids_), MeanNll(expected, ids_), 5e-2);
    }
  }
}

// Numbers of heads that can share latents: 2, 4 and all.
std::vector<int> SharingHeads(int n_kv_heads) {
  std::vector<int> counts;
  for (const int n : {2, 4, n_kv_heads}) {
    const bool is_new = std::ranges::find(counts, n) == counts.end();
    if (n > 1 && n_kv_heads % n == 0 && is_new) counts.push_back(n);
  }
  return counts;
}

TEST_P(RandomModelTest, SharedLatentsMatchTheUnfoldedDecoder) {
  for (const int n : SharingHeads(reference_.n_kv_heads)) {
    SCOPED_TRACE(n);
    MatchesTheUnfoldedDecoder(testing::RandomLatentBases(reference_, 27, n));
  }
}

// Those whose rows a cache may hold as one.
std::vector<int> JoinedHeads(const testing::ReferenceModel& m) {
  std::vector<int> counts = SharingHeads(m.n_kv_heads);
  std::erase_if(counts, [&](int n) { return n * m.head_dim > kMaxRowRank; });
  return counts;
}

TEST_P(RandomModelTest, JoinedHeadsMatchTheUnfoldedDecoder) {
  for (const int n : JoinedHeads(reference_)) {
    SCOPED_TRACE(n);
    MatchesTheUnfoldedDecoder(testing::RandomBases(reference_, 27, n), /*is_joined=*/true);
    MatchesTheUnfoldedDecoder(testing::RandomLatentBases(reference_, 28, n), /*is_joined=*/true);
  }
}

TEST_P(RandomModelTest, BatchedIsSingleWithJoinedHeads) {
  for (const int n : JoinedHeads(reference_)) {
    SCOPED_TRACE(n);
    BatchedIsSingle(testing::RandomBases(reference_, 29, n), /*is_joined=*/true);
    BatchedIsSingle(testing::RandomLatentBases(reference_, 30, n), /*is_joined=*/true);
  }
}

TEST_P(RandomModelTest, BatchedIsSingleWithSharedLatents) {
  for (const int n : SharingHeads(reference_.n_kv_heads)) {
    SCOPED_TRACE(n);
    BatchedIsSingle(testing::RandomLatentBases(reference_, 29, n));
  }
}

TEST_P(RandomModelTest, BatchedIsSingle) { BatchedIsSingle(testing::RandomBases(reference_, 29)); }

TEST_P(RandomModelTest, BatchedIsSingleWithLatentKeys) {
  BatchedIsSingle(testing::RandomLatentBases(reference_, 29));
}

void RandomModelTest::BatchedIsSingle(const std::vector<ReferenceBasis>& bases, bool is_joined) {
  const ModelBasis basis = is_joined ? testing::ToJoinedBasis(reference_, bases)
                                     : testing::ToModelBasis(reference_, bases);
  LoadedModel loaded = LoadModel(directory_, DType::kF32, AvailableIsas().back(), &basis, 4);
  const std::vector<std::vector<int>> texts = {RandomIds(70, reference_.vocab, 1),
                                               RandomIds(3, reference_.vocab, 2),
                                               RandomIds(33, reference_.vocab, 3)};
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SequenceStep> steps;
  for (const auto& text : texts) {
    caches.push_back(std::make_unique<SequenceCache>(&loaded.model->layout(), loaded.blocks.get()));
    tokens.emplace_back(text.begin(), text.end());
    ASSERT_TRUE(caches.back()->Extend(static_cast<int>(text.size()) - 1).ok());
  }
  for (size_t s = 0; s < texts.size(); ++s) {
    steps.push_back({caches[s].get(), std::span(tokens[s]).first(texts[s].size() - 1),
                     SequenceStep::Logits::kNone});
  }
  ASSERT_TRUE(loaded.model->Forward(steps).ok());
  for (size_t s = 0; s < texts.size(); ++s) {
    ASSERT_TRUE(caches[s]->Extend(1).ok());
    steps[s] = {caches[s].get(), std::span(tokens[s]).last(1), SequenceStep::Logits::kLast};
  }
  ASSERT_TRUE(loaded.model->Forward(steps).ok());
  testing::Matrix batched;
  for (size_t s = 0; s < texts.size(); ++s) {
    const auto row = loaded.model->logits(static_cast<int64_t>(s));
    batched.emplace_back(row.begin(), row.end());
  }
  for (size_t s = 0; s < texts.size(); ++s) {
    const testing::Matrix single = EngineLogits(&loaded, texts[s], {512});
    EXPECT_LT(MaxDifference({batched[s]}, {single.back()}), 1e-3) << "sequence " << s;
  }
}

// Heads that lose their mean have no part along it, whatever they are multiplied by then.
TEST(KeyGramsTest, KeysWithoutAMeanHaveGramsWithoutOne) {
  const std::vector<NamedShape> shapes = testing::ModelShapes();
  const auto named = std::ranges::find_if(
      shapes, [](const NamedShape& shape) { return shape.shape.model_type == "cohere"; });
  ASSERT_NE(named, shapes.end());
  const std::string directory = testing::FreshDirectory("key_grams");
  const ReferenceModel reference = testing::WriteRandomModel(named->shape, directory, 17);
  LoadedModel none = LoadModel(directory, DType::kF32, AvailableIsas().back());
  const auto grams = WeightGrams(none.weights.get()).KeyGrams();
  ASSERT_TRUE(grams.ok()) << grams.status();
  const int d = reference.head_dim;
  for (int l = 0; l < reference.n_layers; ++l) {
    const std::vector<double>& weights =
        testing::Tensor(reference, testing::LayerPrefix(reference, l) + "self_attn.k_norm.weight");
    for (int g = 0; g < reference.n_kv_heads; ++g) {
      const std::vector<double>& gram = (*grams)[l * reference.n_kv_heads + g];
      double along_mean = 0, trace = 0;
      for (int i = 0; i < d; ++i) {
        trace += gram[i * d + i];
        for (int j = 0; j < d; ++j) {
          along_mean += gram[i * d + j] / weights[testing::StoredRow(reference, g * d + i)] /
                        weights[testing::StoredRow(reference, g * d + j)];
        }
      }
      EXPECT_LT(along_mean, 1e-6 * trace) << "layer " << l << " head " << g;
      EXPECT_GT(trace, 1);
    }
  }
  std::filesystem::remove_all(directory);
}

// What a model's own tokens say of it, also across heads and of attention's outputs.
CalibrationStatistics StatisticsOf(LoadedModel* none, const std::vector<int>& ids) {
  const ModelConfig& c = none->model->config();
  CalibrationJob job;
  job.shape = {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim};
  job.sequences = {std::vector<int32_t>(ids.begin(), ids.end())};
  job.across_heads = job.outputs = true;
  job.pool = none->pool.get();
  job.forward = [&](std::span<const int32_t> tokens, QkvObserver* observer) -> Status {
    SequenceCache cache(&none->model->layout(), none->blocks.get());
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(tokens.size())));
    const SequenceStep step{&cache, tokens, SequenceStep::Logits::kNone};
    return none->model->Forward({&step, 1}, observer);
  };
  DecoderGradients gradients(none->weights.get(), none->pool.get(), AvailableIsas().back(),
                             /*newest=*/0);
  job.gradients = [&](std::span<const int32_t> tokens, uint64_t seed, QkvObserver* observer,
                      const DecoderGradients::Sink& sink) {
    return gradients.Run(tokens, seed, sink, observer).status();
  };
  auto statistics = Calibrate(job);
  EXPECT_TRUE(statistics.ok()) << statistics.status();
  return *std::move(statistics);
}

TEST_P(RandomModelTest, EveryMethodAtRateZeroIsTheUncompressedModel) {
  LoadedModel none = LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const CalibrationStatistics statistics = StatisticsOf(&none, ids_);
  auto value_grams = WeightGrams(none.weights.get()).ValueGrams();
  ASSERT_TRUE(value_grams.ok()) << value_grams.status();
  auto output_grams = WeightGrams(none.weights.get()).OutputGrams(none.pool.get());
  ASSERT_TRUE(output_grams.ok()) << output_grams.status();
  std::vector<int> ids = ids_, chunks = {40, 1};
  testing::Matrix expected = EngineLogits(&none, ids, chunks);
  const auto expect_same = [&](std::string_view name, const BasisInputs& inputs) {
    const BasisMethod& method = *FindStage(name)->analysis;
    auto analysis = method.analyse(inputs);
    ASSERT_TRUE(analysis.ok()) << analysis.status();
    RankRequest request;
    request.value = 0;
    auto allocation = method.allocate(*analysis, request);
    ASSERT_TRUE(allocation.ok()) << allocation.status();
    const ModelBasis basis = CutBasis(*analysis, allocation->ranks);
    for (int n_sink : {0, 4}) {
      LoadedModel full = LoadModel(directory_, DType::kF32, AvailableIsas().back(), &basis, n_sink);
      EXPECT_LT(MaxDifference(EngineLogits(&full, ids, chunks), expected), 1e-3)
          << name << " n_sink " << n_sink;
    }
  };
  BasisInputs inputs = {&statistics, *value_grams, *output_grams};
  const bool has_value_offsets = !none.model->config().has_sink_logits;
  inputs.options.has_value_offsets = has_value_offsets;
  for (const StageInfo& stage : AllStages()) {
    if (stage.analysis != nullptr) expect_same(stage.name, inputs);
  }
  auto value_biases = WeightGrams(none.weights.get()).ValueBiases();
  ASSERT_TRUE(value_biases.ok()) << value_biases.status();
  const auto key_biases = WeightGrams(none.weights.get()).KeyBiases();
  ASSERT_TRUE(key_biases.ok()) << key_biases.status();
  inputs.key_biases = *key_biases;
  inputs.value_biases = *value_biases;
  for (const int n : SharingHeads(reference_.n_kv_heads)) {
    inputs.options.heads_per_latent = n;
    inputs.options.is_whitened = true;
    expect_same("palu", inputs);
    auto joined_keys = WeightGrams(none.weights.get()).KeyGrams(n),
         joined_values = WeightGrams(none.weights.get()).ValueGrams(n);
    ASSERT_TRUE(joined_keys.ok() && joined_values.ok());
    inputs.options.is_whitened = false;
    inputs.key_grams = *joined_keys;
    inputs.value_grams = *joined_values;
    expect_same("palu", inputs);
  }
  // What keys lose where they turn and behind it, queries add again, whatever it is, in a frame,
  // across frames and without them.
  const ModelConfig& config = none.model->config();
  if (config.rope_dim() > 0) {
    ids = RandomIds(kFramePositions + 44, reference_.vocab, 6);
    chunks = {250, 40, 1};
    expected = EngineLogits(&none, ids, chunks);
  }
  CalibrationStatistics with_mean = statistics;
  with_mean.joint.k_block = with_mean.joint.k_centred = with_mean.joint.k;
  const int n_pairs = MostTurningPairs(config.rope_dim());
  Random random(8);
  for (size_t i = 0; i < with_mean.turning_mean.size(); ++i) {
    const int channel = static_cast<int>(i) % config.head_dim, half = config.rope_dim() / 2;
    if (channel >= 2 * half || channel % half >= n_pairs) continue;
    with_mean.turning_mean[i] = static_cast<float>(3 * random.Normal());
  }
  for (const int joint_channels : {0, config.n_kv_heads * config.head_dim}) {
    for (const bool has_frames : {true, false}) {
      BasisInputs less_mean = {&with_mean, *value_grams, *output_grams};
      less_mean.options = {.has_frames = has_frames && config.rope_dim() > 0,
                           .turning_pairs = n_pairs,
                           .joint_channels = joint_channels};
      less_mean.options.has_value_offsets = has_value_offsets;
      expect_same("lathe", less_mean);
    }
  }
}

// W_O,h^T W_O,h of the group by the folded output of single channels.
TEST_P(RandomModelTest, OutputGramsAreThoseOfWhatAHeadAddsToTheHiddenState) {
  LoadedModel loaded = LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const ModelConfig& c = loaded.model->config();
  auto grams = WeightGrams(loaded.weights.get()).OutputGrams(loaded.pool.get());
  ASSERT_TRUE(grams.ok()) << grams.status();
  const int d = c.head_dim;
  for (int g = 0; g < c.n_kv_heads; ++g) {
    std::vector<double> expected(d * d, 0.0);
    for (int h = g * c.gqa_group(); h < (g + 1) * c.gqa_group(); ++h) {
      testing::Matrix added;  // [head_dim][hidden]
      for (int i = 0; i < d; ++i) {
        std::vector<double> unit(c.n_heads * d, 0.0), nothing(c.n_heads * d, 0.0);
        unit[h * d + i] = 1;
        const std::string layer = testing::LayerPrefix(reference_, 0);
        added.push_back(testing::ProjectOutput(reference_, layer, unit));
        const auto bias = testing::ProjectOutput(reference_, layer, nothing);
        for (size_t j = 0; j < bias.size(); ++j) added.back()[j] -= bias[j];
      }
      for (int i = 0; i < d; ++i) {
        for (int j = 0; j < d; ++j) {
          for (int k = 0; k < c.hidden_dim; ++k) expected[i * d + j] += added[i][k] * added[j][k];
        }
      }
    }
    for (int i = 0; i < d * d; ++i) {
      ASSERT_NEAR((*grams)[g][i], expected[i], 1e-4 * (1 + std::abs(expected[i])));
    }
  }
}

TEST_P(RandomModelTest, ProjectionsWithTheSameMapsAreOne) {
  LoadedModel loaded = LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const ModelConfig& c = loaded.model->config();
  const auto fold = [&](const ModelBasis* basis) {
    auto projection = loaded.weights->FoldValues(0, basis, loaded.pool.get());
    EXPECT_TRUE(projection.ok()) << projection.status();
    return *std::move(projection);
  };
  const auto plain = fold(nullptr);
  const ModelBasis whole = IdentityBasis(c.n_layers, c.n_kv_heads, c.head_dim);
  EXPECT_EQ(fold(nullptr), plain);
  EXPECT_EQ(fold(&whole), plain);
  ModelBasis cut = ToModelBasis(reference_, testing::RandomBases(reference_, 31));
  const auto folded = fold(&cut);
  EXPECT_NE(folded, plain);
  EXPECT_EQ(fold(&cut), folded);
  cut.heads[0].output_basis[1] += 0.5f;
  EXPECT_NE(fold(&cut), folded);
}

TEST_P(RandomModelTest, TheCacheHoldsTheWindowOnly) {
  LoadedModel loaded = LoadModel(directory_, DType::kF32, AvailableIsas().back());
  SequenceCache cache(&loaded.model->layout(), loaded.blocks.get());
  ASSERT_TRUE(cache.Extend(89).ok());
  ASSERT_TRUE(cache.Extend(1).ok());
  // Position 89 is the second of block 1; the block before it is seen unless the window is narrow.
  const int window = GetParam().shape.window;
  const bool is_freed = window > 0 && window <= 89 - 63;
  EXPECT_EQ(cache.head(0, 0).blocks()[0].is_null(), is_freed);
  const bool second_sees_all = GetParam().shape.whole_every == 2;
  EXPECT_EQ(cache.head(1, 0).blocks()[0].is_null(), is_freed && !second_sees_all);
  EXPECT_EQ(cache.bytes().total(), SequenceBytes(loaded.model->layout(), 90));
}

INSTANTIATE_TEST_SUITE_P(Shapes, RandomModelTest, ::testing::ValuesIn(testing::ModelShapes()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(LongRope, ShortContextsTakeTheShortFactors) {
  const std::string directory = testing::FreshDirectory("longrope_short");
  ReferenceModel reference = testing::WriteRandomModel(testing::Phi3LongRope(), directory, 3);
  reference.rope.uses_long_factors = false;
  const std::vector<int> ids = RandomIds(60, reference.vocab, 4);
  LoadedModel loaded = LoadModel(directory, DType::kF32, AvailableIsas().back(), nullptr, 0, 64);
  EXPECT_EQ(loaded.model->config().max_seq_len, 64);
  EXPECT_LT(
      MaxDifference(EngineLogits(&loaded, ids, {60}), testing::ReferenceLogits(reference, ids)),
      1e-3);
  std::filesystem::remove_all(directory);
}

TEST(LearnedPositions, PastTheTableIsAClearError) {
  const std::string directory = testing::FreshDirectory("gpt2_context");
  RandomModelShape shape;
  shape.model_type = "gpt2";
  shape.n_kv_heads = 4;
  shape.max_positions = 20;
  testing::WriteRandomModel(shape, directory, 3);
  LoadedModel loaded = LoadModel(directory, DType::kF32, AvailableIsas().back());
  SequenceCache cache(&loaded.model->layout(), loaded.blocks.get());
  const std::vector<int32_t> tokens(21, 5);
  ASSERT_TRUE(cache.Extend(21).ok());
  const SequenceStep step{&cache, tokens, SequenceStep::Logits::kLast};
  const Status status = loaded.model->Forward({&step, 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("20 positions"), std::string::npos) << MessageOf(status);
  EXPECT_EQ(loaded.model->n_logit_rows(), 0);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvlathe
