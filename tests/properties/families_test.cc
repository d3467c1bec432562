// Caches of every axis on a small model of every family: what a method makes of a feature of the
// model shows in the distance from the uncompressed model, and bytes are what the plan says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "calibrated_model.h"
#include "io/safetensors/safetensors.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "references/golden_models.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::GoldenModel;

constexpr int kPrompt = 160, kDecoded = 48;
using Logits = std::vector<std::vector<float>>;

// Reads a golden model for a context in which ratios can be kept.
StatusOr<ModelConfig> ConfigOf(const GoldenModel& model) {
  KVL_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model.directory));
  if (config.positions == PositionKind::kRope) config.max_seq_len = 32768;
  return config;
}

std::shared_ptr<ModelWeights> WeightsOf(const GoldenModel& model, const ModelConfig& config,
                                        ThreadPool* threads) {
  auto reader = SafetensorsReader::OpenModel(model.directory);
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto weights = ModelWeights::Load(config, DType::kF32, MakeFileSource(*std::move(reader)),
                                    MakeMachine(threads, SelectIsa().value()));
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

std::vector<int32_t> TextFor(const ModelConfig& config) {
  Random random(5);
  std::vector<int32_t> ids(std::min(kPrompt + kDecoded, config.max_seq_len));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(config.vocab_size));
  return ids;
}

// Logits behind the tokens that follow the prompt; bytes are those of the plan after every step.
Logits LogitsBehindPrompt(Model* model) {
  const std::vector<int32_t> ids = TextFor(model->config());
  HostPool pool(int64_t{64} << 20);
  SequenceCache cache(&model->layout(), &pool);
  const int n_prompt = static_cast<int>(ids.size()) - kDecoded;
  cache.set_n_prompt(n_prompt, kDecoded);
  Logits logits;
  while (cache.n_tokens() < std::ssize(ids)) {
    const int begin = cache.n_tokens();
    const auto n = begin < n_prompt ? std::min<int64_t>(n_prompt - begin, cache.max_step()) : 1;
    EXPECT_TRUE(cache.Extend(static_cast<int>(n)).ok());
    const SequenceStep step{&cache, std::span(ids).subspan(begin, n), SequenceStep::Logits::kLast};
    const Status status = model->Forward({&step, 1});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cache.bytes().total(),
              SequenceParts(model->layout(), {cache.n_tokens(), n, n_prompt}).total());
    if (::testing::Test::HasFailure()) return {};
    if (begin >= n_prompt) logits.emplace_back(model->logits(0).begin(), model->logits(0).end());
  }
  return logits;
}

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  std::vector<double> log_p;
  for (const float x : logits) log_p.push_back(x - most - std::log(sum));
  return log_p;
}

double MeanKl(const Logits& from, const Logits& to) {
  double sum = 0;
  for (size_t t = 0; t < from.size(); ++t) {
    const std::vector<double> p = LogSoftmax(from[t]), q = LogSoftmax(to[t]);
    for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(from.size());
}

// A cache, and how far it may be from the uncompressed model, in nats. With experts, rows that are
// a little off may go to another expert; in gpt-oss none does. Measured in models without and with
// experts: int8 8.6e-4 and 0.022, kivi 0.11 and 0.31, turboquant 0.15 and 0.37. A basis with half
// the rank, dropped entries and what lathe leaves of heads of 16 channels cost tenths of a nat in
// models whose weights are random: 1.1 at most.
struct BoundedSpec {
  const char* text;
  double bound, bound_with_experts;
};
constexpr double kInt8Bound = 2e-3;
constexpr BoundedSpec kSpecs[] = {
    {"zack(rate=0.5,ranks=uniform)", 2, 2},
    {"palu(rate=0.5,ranks=uniform,round=16)", 2, 2},
    {"h2o(keep=0.5)", 2, 2},
    {"int8", kInt8Bound, 0.03},
    {"kivi(bits=4)", 0.25, 0.7},
    {"turboquant(bits=4)", 0.3, 0.7},
    {"fdc(rate=0.25,ranks=uniform)+kivi(bits=4)", 1, 1},
    {"h2o(keep=0.5)+kivi(bits=4)", 2, 2},
    {"lathe(ratio=4)", 2, 2},
    {"lathe(ratio=4,keys=before)", 2, 2},
};

class FamiliesTest : public ::testing::TestWithParam<GoldenModel> {};

// What cannot be had of a model, by a part of what is said when it is planned.
bool IsRefusedRightly(const ModelConfig& c, const Spec& spec, const std::string& message) {
  if (spec.retention() != nullptr && c.attention.HasWindow()) {
    return message.find(
               "entries cannot be dropped from the cache of a model with a sliding window") !=
           std::string::npos;
  }
  // What a window of 21 or 33 positions holds in all layers is not sealed, and the 96 positions of
  // the tiny GPT-2 hardly are.
  const std::vector<int> windows = c.attention.Windows(c.n_layers);
  const bool is_short = std::ranges::all_of(windows, [](int window) { return window > 0; });
  if (spec.basis() == nullptr || RanksOf(*spec.basis()) == nullptr) return false;
  if (!RanksOf(*spec.basis())->has_ratio()) return false;
  return (windows.empty() ? c.max_seq_len < 256 : is_short) &&
         message.find("the fewest bits reach only") != std::string::npos;
}

TEST_P(FamiliesTest, CachesOfEveryAxisAreNearTheModel) {
  ThreadPool threads(1);
  const auto config = ConfigOf(GetParam());
  ASSERT_TRUE(config.ok()) << config.status();
  CalibratedModel model(GetParam().name, WeightsOf(GetParam(), *config, &threads), &threads);
  ASSERT_FALSE(HasFailure());
  auto plain = CreateModel(model.weights(), {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  const Logits expected = LogitsBehindPrompt(plain->get());
  for (const BoundedSpec& bounded : kSpecs) {
    SCOPED_TRACE(bounded.text);
    const StatusOr<Spec> spec = Spec::Parse(bounded.text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const StatusOr<CachePlan> plan = model.planner().MakePlan(*spec);
    if (!plan.ok()) {
      EXPECT_TRUE(IsRefusedRightly(*config, *spec, plan.status().ToString())) << plan.status();
      continue;
    }
    const auto created = Model::Create(model.weights(), *plan);
    ASSERT_TRUE(created.ok()) << created.status();
    const double kl = MeanKl(expected, LogitsBehindPrompt(created->get()));
    RecordProperty(bounded.text, std::to_string(kl));
    const bool may_flip = config->experts.has_value() && !config->has_sink_logits;
    EXPECT_LT(kl, may_flip ? bounded.bound_with_experts : bounded.bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, FamiliesTest, ::testing::ValuesIn(testing::GoldenModels()),
                         [](const auto& model) { return model.param.name; });

// What the bounds are worth: without one of the features that attention has, a model is further
// from itself than int8 may be. Measured: 0.012 (the scale of Granite's scores) to 1.8.
TEST(FamiliesBoundsTest, AFeatureThatIsIgnoredIsFarther) {
  struct Ignored {
    const char* model;
    void (*ignore)(ModelConfig* config);
  };
  constexpr auto kSees = [](ModelConfig* c) {
    for (AttentionKind& kind : c->attention.kinds) kind.window = 0;
  };
  constexpr auto kTurns = [](ModelConfig* c) {
    const auto turns = std::ranges::find_if(c->attention.kinds, [](const AttentionKind& kind) {
      return kind.rope.scaling != RopeConfig::Scaling::kStill;
    });
    for (AttentionKind& kind : c->attention.kinds) kind.rope = turns->rope;
  };
  const Ignored all[] = {
      {"gpt_oss", [](ModelConfig* c) { c->has_sink_logits = false; }},
      {"gemma2", [](ModelConfig* c) { c->score_cap = 0; }},
      {"granite", [](ModelConfig* c) { c->score_scale = 0; }},
      {"ministral3", [](ModelConfig* c) { c->attention.kinds[0].query_growth = 0; }},
      {"llama_yarn", [](ModelConfig* c) { c->attention.kinds[0].rope.amplitude = 1; }},
      {"glm4", [](ModelConfig* c) { c->has_neighbour_pairs = false; }},
      {"smollm3", kTurns},
      {"exaone4", kTurns},
      {"olmo3", kSees},
  };
  ThreadPool threads(1);
  int64_t n_compared = 0;
  for (const Ignored& ignored : all) {
    for (const GoldenModel& golden : testing::GoldenModels()) {
      if (golden.name != ignored.model) continue;
      const auto config = ConfigOf(golden);
      ASSERT_TRUE(config.ok()) << config.status();
      ModelConfig other = *config;
      ignored.ignore(&other);
      auto model = CreateModel(WeightsOf(golden, *config, &threads), {});
      auto without = CreateModel(WeightsOf(golden, other, &threads), {});
      ASSERT_TRUE(model.ok() && without.ok());
      const double kl =
          MeanKl(LogitsBehindPrompt(model->get()), LogitsBehindPrompt(without->get()));
      EXPECT_GT(kl, 2 * kInt8Bound) << golden.name;
      ++n_compared;
    }
  }
  EXPECT_EQ(n_compared, std::ssize(all));
}

}  // namespace
}  // namespace kvlathe
