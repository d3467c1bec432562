// What a cache holds under GEAR's specs against a literal transcription of the paper.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"
#include "cpu/memory/cpu_device.h"
#include "evaluation/quality.h"
#include "evaluation/stored_rows.h"
#include "gear_reference.h"
#include "io/files.h"
#include "io/safetensors/safetensors.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "model/weights.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::CompressByGear;
using testing::GearParts;
using testing::GearSettings;
using testing::Matrix;

// A prompt of three whole blocks and a few positions, which with those that follow make one more.
constexpr int kPrompt = 200, kTokens = 257;
constexpr int64_t kBudgetBytes = 64 << 20;

struct Case {
  const char* spec;
  GearSettings literal;
  int decode_rank;
};

constexpr auto kKcvt = GearSettings::Backbone::kKcvt;
constexpr auto kKivi = GearSettings::Backbone::kKivi;

// With sink=0 and run=prompt, the papers' schedule. `share` gives a block of 64 positions outliers
// too.
const Case kCases[] = {
    {"gear(bits=4,run=prompt,sink=0)", {.share = 0.02, .rank = 4}, 2},
    {"gear(bits=4,share=0.1,run=prompt,sink=0)", {.share = 0.1, .rank = 4}, 2},
    {"gear(bits=2,share=0.1,run=prompt,sink=0)",
     {.backbone = kKivi, .bits = 2, .share = 0.1, .rank = 4},
     2},
    {"gear(bits=2,share=0.1,prefill=12,decode=9,loops=6,run=prompt,sink=0)",
     {.backbone = kKivi, .bits = 2, .share = 0.1, .rank = 12, .loops = 6},
     9},
    {"gear-l(bits=4,run=prompt,sink=0)", {.rank = 4}, 2},
    {"gear-l(bits=2,decode=0,run=prompt,sink=0)", {.backbone = kKivi, .bits = 2, .rank = 4}, 0},
    {"outlier-aware(bits=2,share=0.1,run=prompt,sink=0)",
     {.backbone = kKivi, .bits = 2, .share = 0.1},
     0},
};

// Root mean squares over some elements.
class Rms {
 public:
  void Add(double x) { square_ += x * x, ++n_; }
  double value() const { return n_ > 0 ? std::sqrt(square_ / n_) : 0; }
  double n() const { return n_; }

 private:
  double square_ = 0, n_ = 0;
};

// Errors of one side of a run, over all heads.
struct Errors {
  Rms stored, literal;                    // of the elements that are no outliers
  Rms stored_outliers, literal_outliers;  // of those that are
  Rms stored_all, literal_all;
};

class GearTest : public ::testing::Test {
 protected:
  void Run(std::shared_ptr<ModelWeights> weights, const std::vector<int32_t>& tokens);
  void CheckRun(const Model& model, const SequenceCache& cache, const ComputedRows& computed,
                int layer_idx, int run_idx, const Case& c);

  ThreadPool threads_{2};
};

// Rows of one side of a run, [head][position][channel].
struct Rows {
  std::vector<Matrix> computed, stored;
};

Rows RowsOf(const Model& model, const SequenceCache& cache, const ComputedRows& computed,
            int layer_idx, int run_idx, bool is_key) {
  const CacheLayout& layout = model.layout();
  Rows rows;
  for (int h = 0; h < layout.n_kv_heads; ++h) {
    const SealedRun& run = cache.head(layer_idx, h).runs()[run_idx];
    StoredRows reader(model, cache, layer_idx, h);
    Matrix& of_head = rows.computed.emplace_back();
    Matrix& stored = rows.stored.emplace_back();
    for (int b = 0; b < run.n_blocks; ++b) {
      reader.Read(run, b);
      for (int t = 0; t < kBlockSize; ++t) {
        const int64_t position = int64_t{run.first_block + b} * kBlockSize + t;
        const float* row =
            (is_key ? computed.key(layer_idx, position) : computed.value(layer_idx, position)) +
            h * layout.head_dim;
        of_head.emplace_back(row, row + layout.head_dim);
        const std::vector<float> got = is_key ? reader.Key(t) : reader.Value(t);
        stored.emplace_back(got.begin(), got.end());
      }
    }
  }
  return rows;
}

// Rows of one side of the entries that some heads of a layer sealed where the prompt ended:
// `computed` from a cache that did not seal, which holds the same entries.
Rows EntriesOf(const Model& model, const SequenceCache& sealed, const SequenceCache& plain,
               int layer_idx, std::span<const int> heads, bool is_key) {
  Rows rows;
  for (const int h : heads) {
    const BlockShape shape = plain.head(layer_idx, h).shape();
    const SealedRun& run = sealed.head(layer_idx, h).runs().front();
    StoredRows reader(model, sealed, layer_idx, h);
    const CpuAccess access(plain.device());
    Matrix& of_head = rows.computed.emplace_back();
    Matrix& stored = rows.stored.emplace_back();
    for (int e = 0; e < run.n_blocks * kBlockSize; ++e) {
      const int b = e / kBlockSize, t = e % kBlockSize;
      if (t == 0) reader.Read(run, b);
      const auto* block =
          reinterpret_cast<const float*>(access.At(plain.head(layer_idx, h).blocks()[b]));
      std::vector<double>& row = of_head.emplace_back();
      for (int c = 0; c < model.layout().head_dim; ++c) {
        row.push_back(is_key ? block[KeyOffset(t, c)]
                             : (block + kBlockSize * shape.rank_k)[ValueOffset(shape, t, c)]);
      }
      const std::vector<float> got = is_key ? reader.Key(t) : reader.Value(t);
      stored.emplace_back(got.begin(), got.end());
    }
  }
  return rows;
}

Errors Compare(const Rows& rows, const GearParts& literal) {
  Errors errors;
  for (size_t h = 0; h < rows.computed.size(); ++h) {
    for (size_t t = 0; t < rows.computed[h].size(); ++t) {
      for (size_t c = 0; c < rows.computed[h][t].size(); ++c) {
        const double x = rows.computed[h][t][c];
        const double stored = rows.stored[h][t][c] - x;
        const double paper =
            literal.quantized[h][t][c] + literal.sparse[h][t][c] + literal.low_rank[h][t][c] - x;
        const bool is_outlier = literal.is_outlier[h][t][c];
        (is_outlier ? errors.stored_outliers : errors.stored).Add(stored);
        (is_outlier ? errors.literal_outliers : errors.literal).Add(paper);
        errors.stored_all.Add(stored);
        errors.literal_all.Add(paper);
      }
    }
  }
  return errors;
}

void ExpectLikeThePaper(const GearSettings& settings, bool is_key, const Rows& rows) {
  const GearParts literal = CompressByGear(settings, is_key, rows.computed, 5);
  const Errors errors = Compare(rows, literal);
  // Scales are rounded to 16 bits, and the power iterations begin elsewhere: the paper's is within
  // 3% of the best factors, ours too.
  EXPECT_NEAR(errors.stored.value(), errors.literal.value(), 0.05 * errors.literal.value());
  EXPECT_LE(errors.stored_all.value(), 1.05 * errors.literal_all.value());
  if (errors.stored_outliers.n() == 0) return;
  // The sum of the paper's parts is off by the low-rank part where an outlier is; what is stored is
  // the outlier, within 2^-8 of its distance from the codes.
  EXPECT_LE(errors.stored_outliers.value(), 0.06 * errors.stored.value());
  EXPECT_EQ(settings.rank > 0, errors.literal_outliers.value() > 0.05 * errors.literal.value());
}

void GearTest::CheckRun(const Model& model, const SequenceCache& cache,
                        const ComputedRows& computed, int layer_idx, int run_idx, const Case& c) {
  GearSettings settings = c.literal;
  const bool is_prompt = cache.head(layer_idx, 0).runs()[run_idx].is_prompt;
  EXPECT_EQ(is_prompt, run_idx == 0);
  if (!is_prompt) settings.rank = c.decode_rank;
  for (const bool is_key : {true, false}) {
    SCOPED_TRACE(
        fmt::format("{} layer {} run {} {}", c.spec, layer_idx, run_idx, is_key ? "K" : "V"));
    ExpectLikeThePaper(settings, is_key,
                       RowsOf(model, cache, computed, layer_idx, run_idx, is_key));
  }
}

void GearTest::Run(std::shared_ptr<ModelWeights> weights, const std::vector<int32_t>& tokens) {
  for (const Case& c : kCases) {
    const Spec spec = *Spec::Parse(c.spec);
    auto model = CreateModel(weights, PartsOf(spec));
    ASSERT_TRUE(model.ok()) << model.status();
    HostPool pool(kBudgetBytes);
    SequenceCache cache(&(*model)->layout(), &pool);
    ComputedRows computed((*model)->layout(), /*keeps_keys_before_rope=*/false);
    const std::span all(tokens);
    ASSERT_TRUE(Prefill(model->get(), &cache, all.first(kPrompt), &computed).ok());
    ASSERT_TRUE(Prefill(model->get(), &cache, all.subspan(kPrompt), &computed).ok());
    for (int l = 0; l < (*model)->layout().n_layers; ++l) {
      ASSERT_EQ(cache.head(l, 0).runs().size(), 2u);
      for (int run_idx : {0, 1}) CheckRun(**model, cache, computed, l, run_idx, c);
    }
  }
}

TEST_F(GearTest, RandomRows) {
  auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, MakeRandomSource(3),
                                    MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<int32_t> tokens;
  for (int t = 0; t < kTokens; ++t) tokens.push_back((t * 37 + t / 11) % kSmallVocabulary);
  Run(*std::move(weights), tokens);
}

TEST_F(GearTest, RowsOfATrainedModel) {
  const std::string directory = KVLATHE_SOURCE_DIR "/models/lathe-nano";
  auto reader = SafetensorsReader::OpenModel(directory);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto weights = ModelWeights::Load(*LoadModelConfig(directory), DType::kF32,
                                    MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto golden = ReadJsonFile(directory + "/golden.json");
  ASSERT_TRUE(golden.ok()) << golden.status();
  std::vector<int32_t> tokens;
  for (const auto& text : golden->at("cases")) {
    const std::vector<int32_t> ids = text.at("ids");
    if (ids.size() == kTokens) tokens = ids;
  }
  ASSERT_EQ(tokens.size(), static_cast<size_t>(kTokens));
  Run(*std::move(weights), tokens);
}

// Entries that merged are compressed as any others are, under dmc those of each head alone.
TEST_F(GearTest, EntriesThatMerged) {
  struct MergedCase {
    const char* merging;
    const char* codes;
    GearSettings literal;
  };
  const MergedCase cases[] = {
      {"dmc(sink=0)",
       "gear(bits=2,share=0.1)",
       {.backbone = kKivi, .bits = 2, .share = 0.1, .rank = 4}},
      {"dmc(sink=0)",
       "kivi(bits=4,group=64)+lowrank+sparse(share=0.1)",
       {.backbone = kKivi, .bits = 4, .share = 0.1, .rank = 4}},
      {"dmc(sink=0)", "gear-l(bits=2,prefill=7)", {.backbone = kKivi, .bits = 2, .rank = 7}},
      {"pool(n=2,sink=0)", "gear(bits=4,share=0.1,run=prompt)", {.share = 0.1, .rank = 4}},
      {"pool(n=2,sink=0)",
       "gear(bits=2,share=0.1,run=prompt)",
       {.backbone = kKivi, .bits = 2, .share = 0.1, .rank = 4}},
  };
  constexpr int kLongPrompt = 400;
  ModelConfig config = SmallConfig();
  config.dmc = DmcConfig{.offset = 0, .weight_offset = 0};
  auto loaded = ModelWeights::Load(config, DType::kF32, MakeRandomSource(3),
                                   MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::shared_ptr<ModelWeights> weights = *std::move(loaded);
  Random random(4);
  std::vector<int32_t> tokens(kLongPrompt);
  for (int32_t& id : tokens) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  HostPool pool(kBudgetBytes);
  const auto read = [&](const std::string& text, std::unique_ptr<Model>* model) {
    auto made = CreateModel(weights, PartsOf(*Spec::Parse(text)));
    EXPECT_TRUE(made.ok()) << made.status();
    *model = *std::move(made);
    auto cache = std::make_unique<SequenceCache>(&(*model)->layout(), &pool);
    cache->set_n_prompt(kLongPrompt);
    EXPECT_TRUE(Prefill(model->get(), cache.get(), tokens).ok());
    return cache;
  };
  for (const MergedCase& c : cases) {
    std::unique_ptr<Model> model, plain_model;
    const auto sealed = read(std::string(c.merging) + "+" + c.codes, &model);
    const auto plain = read(c.merging, &plain_model);
    const CacheLayout& layout = model->layout();
    // Attention of the prompt reads 16 bits, so both hold the same entries where it ends.
    for (int i = 0; i < layout.n_layers * layout.n_kv_heads; i += layout.n_heads_per_run()) {
      const int l = i / layout.n_kv_heads;
      std::vector<int> heads(layout.n_heads_per_run());
      std::iota(heads.begin(), heads.end(), i % layout.n_kv_heads);
      ASSERT_EQ(sealed->head(l, heads[0]).runs().size(), 1u);
      ASSERT_GE(sealed->head(l, heads[0]).runs()[0].n_blocks, 2);
      for (const bool is_key : {true, false}) {
        SCOPED_TRACE(fmt::format("{}+{} layer {} head {} {}", c.merging, c.codes, l, heads[0],
                                 is_key ? "K" : "V"));
        ExpectLikeThePaper(c.literal, is_key, EntriesOf(*model, *sealed, *plain, l, heads, is_key));
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
