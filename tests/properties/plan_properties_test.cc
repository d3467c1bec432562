// What a plan promises, for random specs of the whole grammar on small models: a spec is refused
// with a reason when it is planned, or it runs; bytes are what the plan says; `ratio` is kept.
//
//   KVLATHE_PROPERTY_SEED    of the first spec (default 1); each failure prints its own
//   KVLATHE_PROPERTY_COUNT   specs for each model
//   KVLATHE_PROPERTY_TRACE   not empty: prints every spec before it is tried
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "calibrated_model.h"
#include "drawn_spec.h"
#include "engine/session.h"
#include "io/scratch_folder.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_rows.h"
#include "model/model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kPoolBytes = int64_t{64} << 20;
constexpr int kChunk = 48;    // positions of a step of the prompt
constexpr int kDecoded = 70;  // over the end of a block
constexpr int kAfterRestoring = 5;

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

// Of a status, with what was being done.
std::string Failed(const char* what, const Status& status) {
  return status.ok() ? "" : fmt::format("{}: {}", what, status.ToString());
}

// One sequence that runs on a model, checked against the plan after every step.
class PlannedSequence {
 public:
  PlannedSequence(Model* model, int n_prompt)
      : model_(model),
        n_prompt_(n_prompt),
        cache_(std::make_unique<SequenceCache>(&model->layout(), &pool_)) {
    cache_->set_n_prompt(n_prompt, kDecoded);
  }

  // Reads tokens in steps of at most `most`; what went wrong, or nothing.
  std::string Feed(std::span<const int32_t> ids, int most) {
    while (!ids.empty()) {
      const auto n = std::min<int64_t>({std::ssize(ids), most, cache_->max_step()});
      if (Status status = cache_->Extend(static_cast<int>(n)); !status.ok()) {
        return Failed("Extend", status);
      }
      const SequenceStep step{cache_.get(), ids.first(n), SequenceStep::Logits::kLast};
      if (Status status = model_->Forward({&step, 1}); !status.ok()) {
        return Failed("Forward", status);
      }
      tokens_.insert(tokens_.end(), ids.begin(), ids.begin() + n);
      ids = ids.subspan(n);
      if (cache_->must_read_again()) {
        std::vector<int32_t> prompt = tokens_;
        prompt.insert(prompt.end(), ids.begin(), ids.end());
        const Status again = model_->ReadPromptAgain(cache_.get(), prompt, most);
        if (!again.ok()) return Failed("ReadPromptAgain", again);
        has_read_again_ = true;
      }
      if (std::string wrong = CheckBytes(static_cast<int>(n)); !wrong.empty()) return wrong;
    }
    return "";
  }

  // Saves, restores into a pool of its own and feeds both; they give the same logits.
  std::string SaveAndGoOn(const SequenceIdentity& identity, const std::string& path,
                          std::span<const int32_t> ids) {
    Session session{.tokens = tokens_, .turn_ends = {n_prompt_, static_cast<int>(tokens_.size())}};
    session.tokens.push_back(ids.front());
    ++session.turn_ends.back();
    session.cache = std::move(cache_);
    const CacheLayout& layout = model_->layout();
    const Status saved = SaveSession(session, identity, path);
    cache_ = std::move(session.cache);
    if (!saved.ok()) return Failed("SaveSession", saved);
    HostPool other_pool(kPoolBytes);
    auto restored = LoadSession(path, {identity, &layout, 1 << 16}, kSmallVocabulary, &other_pool);
    if (!restored.ok()) return Failed("LoadSession", restored.status());
    for (const int32_t id : ids) {
      if (std::string wrong = Feed({&id, 1}, 1); !wrong.empty()) return wrong;
      const std::vector<float> expected(model_->logits(0).begin(), model_->logits(0).end());
      SequenceCache* const cache = restored->cache.get();
      if (Status status = cache->Extend(1); !status.ok()) return Failed("Extend restored", status);
      const SequenceStep step{cache, {&id, 1}, SequenceStep::Logits::kLast};
      if (Status status = model_->Forward({&step, 1}); !status.ok()) {
        return Failed("Forward of a restored cache", status);
      }
      if (!std::equal(expected.begin(), expected.end(), model_->logits(0).begin())) {
        return fmt::format("a restored cache gives other logits at position {}", tokens_.size());
      }
    }
    return "";
  }

  std::string Clear() {
    cache_->Clear();
    return pool_.usage().used_bytes == 0 ? "" : "blocks are left after Clear";
  }

 private:
  std::string CheckBytes(int n_step) {
    const CacheLayout& layout = model_->layout();
    const auto n_tokens = static_cast<int64_t>(tokens_.size());
    const int64_t expected = layout.ModelDecidesEntries()
                                 ? MergedParts(layout, MergedLengths(*cache_, layout)).total()
                                 : SequenceParts(layout, {n_tokens, n_step, n_prompt_}).total();
    // Of a prompt that was read again heads keep as many entries as they deserve, and the plan is
    // the most that they can take.
    const int64_t total = cache_->bytes().total();
    if (has_read_again_ ? total > expected : total != expected) {
      return fmt::format("{} bytes after {} positions where the plan says {}",
                         cache_->bytes().total(), n_tokens, expected);
    }
    most_step_ = std::max(most_step_, n_step);
    // A prompt is read again before its last token.
    const int64_t n_counted = has_read_again_ ? std::max<int64_t>(n_tokens, n_prompt_) : n_tokens;
    const int64_t peak = PeakSequenceBytes(layout, n_counted, most_step_, n_prompt_);
    if (pool_.usage().peak_bytes > peak) {
      return fmt::format("a peak of {} bytes after {} positions where the plan says {}",
                         pool_.usage().peak_bytes, n_tokens, peak);
    }
    return "";
  }

  Model* model_;
  int n_prompt_;
  int most_step_ = 0;
  bool has_read_again_ = false;
  HostPool pool_{kPoolBytes};
  std::unique_ptr<SequenceCache> cache_;
  std::vector<int32_t> tokens_;
};

// A refusal says more than which spec it is: a stage, an axis or a key of it.
std::string CheckRefusal(const Spec& spec, const Status& status) {
  if (status.code() != StatusCode::kInvalidArgument &&
      status.code() != StatusCode::kUnimplemented) {
    return Failed("refused", status);
  }
  std::string message(status.message());
  const std::string quoted = fmt::format("--kv '{}': ", spec.text());
  if (!message.starts_with(quoted)) return "a refusal without its spec: " + message;
  message = message.substr(quoted.size());
  for (const Stage& stage : spec.stages()) {
    if (message.find(stage.name) != std::string::npos) return "";
    if (message.find(AxisName(stage.axis)) != std::string::npos) return "";
    for (const StageValue& value : stage.values) {
      if (message.find(value.first->name) != std::string::npos) return "";
    }
  }
  return "a refusal that names nothing of the spec: " + message;
}

// Stored bytes over those of 16 bits at the full context, at the splits of prompt and answer that
// docs/basis.md names.
std::string CheckRatio(const Spec& spec, const CachePlan& plan, const ModelConfig& config) {
  const RankOptions* const ranks = spec.basis() == nullptr ? nullptr : RanksOf(*spec.basis());
  if (ranks == nullptr || !ranks->has_ratio()) return "";
  const int64_t n = config.max_seq_len;
  for (const int64_t n_prompt : {n / 2, n}) {
    const double fraction = static_cast<double>(SequenceBytes(plan.layout(), n, 1, n_prompt)) /
                            static_cast<double>(ReferenceBytes(plan.layout(), n));
    if (fraction * ranks->value > 1 + 1e-9) {
      return fmt::format("ratio={} takes {:.4f} of a context of {} with a prompt of {}",
                         ranks->value, fraction, n, n_prompt);
    }
  }
  return "";
}

std::vector<int32_t> DrawTokens(int n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  return ids;
}

// What is wrong with the spec on this model, or nothing. `n_run` counts specs that ran.
std::string Check(CalibratedModel* model, const std::string& text, int n_prompt, int* n_run) {
  const StatusOr<Spec> spec = Spec::Parse(text);
  if (!spec.ok()) return "";  // spec_test has what the parser promises
  const StatusOr<CachePlan> plan = model->planner().MakePlan(*spec);
  if (!plan.ok()) return CheckRefusal(*spec, plan.status());
  if (std::string wrong = CheckRatio(*spec, *plan, model->config()); !wrong.empty()) return wrong;
  const auto created = Model::Create(model->weights(), *plan);
  if (!created.ok()) return Failed("Model::Create", created.status());
  (*created)->set_deterministic(true);
  ++*n_run;
  static const ScratchFolder folder;
  PlannedSequence sequence(created->get(), n_prompt);
  std::string wrong = sequence.Feed(DrawTokens(n_prompt, 1), kChunk);
  if (wrong.empty()) wrong = sequence.Feed(DrawTokens(kDecoded, 2), 1);
  if (wrong.empty()) {
    wrong = sequence.SaveAndGoOn({spec->ToString(), "a model"}, folder / "session",
                                 DrawTokens(kAfterRestoring, 3));
  }
  return wrong.empty() ? sequence.Clear() : wrong;
}

class PlanProperties : public ::testing::Test {
 protected:
  std::unique_ptr<CalibratedModel> Load(const std::string& name, const ModelConfig& config,
                                        std::unique_ptr<TensorSource> source) {
    auto weights = ModelWeights::Load(config, DType::kBf16, std::move(source),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    return std::make_unique<CalibratedModel>(name, *std::move(weights), &threads_);
  }

  void CheckDrawnSpecs(CalibratedModel* model, int n_specs) {
    n_specs = FromEnvironment("KVLATHE_PROPERTY_COUNT", n_specs);
    const int first_seed = FromEnvironment("KVLATHE_PROPERTY_SEED", 1);
    const bool traces = FromEnvironment("KVLATHE_PROPERTY_TRACE", 0) != 0;
    int n_run = 0;
    for (int seed = first_seed; seed < first_seed + n_specs; ++seed) {
      Random random(seed);
      const DrawnSpec spec = DrawSpec(&random);
      const int n_prompt = 1 + static_cast<int>(random.Below(220));
      const std::string text = spec.ToString();
      if (traces) fmt::print(stderr, "{} seed {}: {}\n", model->name(), seed, text);
      const std::string wrong = Check(model, text, n_prompt, &n_run);
      if (wrong.empty()) continue;
      int ignored = 0;
      const DrawnSpec smallest = Shrink(spec, [&](const std::string& smaller) {
        return !Check(model, smaller, n_prompt, &ignored).empty();
      });
      ADD_FAILURE() << model->name() << ", seed " << seed << ", prompt of " << n_prompt << ": "
                    << text << "\n  " << wrong << "\n  smallest: --kv '" << smallest.ToString()
                    << "': " << Check(model, smallest.ToString(), n_prompt, &ignored)
                    << "\n  again: KVLATHE_PROPERTY_SEED=" << seed << " KVLATHE_PROPERTY_COUNT=1";
    }
    fmt::print("{}: seeds {} to {}, {} specs ran\n", model->name(), first_seed,
               first_seed + n_specs - 1, n_run);
    if (n_specs >= 20) {
      EXPECT_GT(n_run, n_specs / 5);
    }
  }

  ThreadPool threads_{2};
};

ModelConfig GroupedConfig() { return SmallConfig(); }

// Layers with a window take turns with layers that see everything, each with a RoPE of its own.
ModelConfig WindowedConfig() {
  ModelConfig c = SmallConfig(/*head_dim=*/48);
  c.n_layers = 3;
  c.attention.kinds.resize(2);
  c.attention.kinds[0].window = 80;
  c.attention.kinds[1].rope.theta = 1000000;
  c.attention.kind_of_layer = {0, 1, 0};
  return c;
}

// Decides what merges and what leaves, and has a head for every query.
ModelConfig MergingConfig() {
  ModelConfig c = SmallConfig();
  c.n_kv_heads = c.n_heads;
  c.dmc = DmcConfig{.offset = 0, .weight_offset = 0};
  c.dms = DmsConfig{.window = 40, .offset = 0};
  return c;
}

// Sink logits, caps, norms of every kind, a layer that does not turn, and experts.
ModelConfig FeaturedConfig() {
  ModelConfig c = SmallConfig(/*head_dim=*/32);
  c.has_sink_logits = true;
  c.score_cap = 20;
  c.logit_cap = 30;
  c.norms.of_inputs = false;
  c.norms.of_outputs = true;
  c.norms.of_qk = QkNormConfig{.over = QkNormConfig::Over::kHead};
  c.attention.kinds.resize(2);
  c.attention.kinds[1].rope.scaling = RopeConfig::Scaling::kStill;
  c.attention.kind_of_layer = {0, 1};
  c.n_layers = 2;
  c.experts = ExpertsConfig{.n_experts = 4, .n_used = 2, .ffn_dim = 48};
  c.experts->of_layer = {true, false};
  return c;
}

TEST_F(PlanProperties, HoldWithFeaturesOfAttentionAndExperts) {
  CheckDrawnSpecs(Load("featured", FeaturedConfig(), MakeRandomSource(3)).get(), 40);
}

TEST_F(PlanProperties, HoldWithGroupedQueries) {
  CheckDrawnSpecs(Load("grouped", GroupedConfig(), MakeRandomSource(3)).get(), 60);
}

TEST_F(PlanProperties, HoldWithWindowsOfSomeLayers) {
  CheckDrawnSpecs(Load("windowed", WindowedConfig(), MakeRandomSource(3)).get(), 60);
}

TEST_F(PlanProperties, HoldWhereTheModelMerges) {
  CheckDrawnSpecs(Load("merging", MergingConfig(), MakeRandomSource(3)).get(), 60);
}

TEST_F(PlanProperties, HoldOnLatheNano) {
  const std::string directory = KVLATHE_SOURCE_DIR "/models/lathe-nano";
  auto config = LoadModelConfig(directory);
  ASSERT_TRUE(config.ok()) << config.status();
  auto reader = SafetensorsReader::OpenModel(directory);
  ASSERT_TRUE(reader.ok()) << reader.status();
  CheckDrawnSpecs(Load("lathe-nano", *config, MakeFileSource(*std::move(reader))).get(), 200);
}

TEST_F(PlanProperties, HoldForMoreSpecs) {
  for (const auto& [name, config] :
       {std::pair("grouped", GroupedConfig()), std::pair("windowed", WindowedConfig()),
        std::pair("merging", MergingConfig())}) {
    CheckDrawnSpecs(Load(name, config, MakeRandomSource(3)).get(), 600);
  }
}

}  // namespace
}  // namespace kvlathe
