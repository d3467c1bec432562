#include "retained_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <random>

#include "cpu/kernels/attend/resolve.h"
#include "cpu/memory/cpu_device.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {

using testing::Matrix;
using testing::RepeatLiterally;

std::string RetainedModelTest::directory_;
testing::ReferenceModel RetainedModelTest::reference_;
std::vector<testing::ReferenceBasis> RetainedModelTest::maps_;
std::vector<testing::ReferenceBasis> RetainedModelTest::latents_;
std::vector<testing::ReferenceBasis> RetainedModelTest::shared_latents_;
std::vector<int32_t> RetainedModelTest::ids_;

void RetainedModelTest::SetUpTestSuite() {
  SetUpModel({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32}, /*score_cap=*/0);
}

void RetainedModelTest::SetUpModel(const testing::RandomModelShape& shape, double score_cap) {
  directory_ = testing::FreshDirectory("retained_model");
  reference_ = testing::WriteRandomModel(shape, directory_, 31);
  reference_.features.score_cap = score_cap;
  maps_ = testing::RandomBases(reference_, 12);
  latents_ = testing::RandomLatentBases(reference_, 12);
  shared_latents_ = testing::RandomLatentBases(reference_, 12, reference_.n_kv_heads);
  ids_.clear();  // both suites of this class come here
  std::mt19937_64 random(8);
  for (int i = 0; i < kManyTokens; ++i) {
    ids_.push_back(static_cast<int32_t>(random() % reference_.vocab));
  }
}

void RetainedModelTest::TearDownTestSuite() { std::filesystem::remove_all(directory_); }

std::unique_ptr<Model> RetainedModelTest::Load(Isa isa, DType type, const char* spec_text,
                                               double slack) {
  const auto spec = Spec::Parse(spec_text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto reader = SafetensorsReader::OpenModel(directory_);
  ModelConfig config = *LoadModelConfig(directory_);
  config.score_cap = static_cast<float>(reference_.features.score_cap);
  auto weights = ModelWeights::Load(config, type, MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads_, isa));
  EXPECT_TRUE(weights.ok()) << weights.status();
  const ModelBasis basis = testing::ToModelBasis(reference_, BasesOf(spec_text));
  PlanParts parts = PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis);
  if (parts.retention.has_value()) parts.retention->run = kRun;
  if (slack > 0) parts.retention->slack = slack;
  if (parts.retention.has_value() && parts.retention->repeats_prompt()) {
    parts.retention->repeat.first_words = kFirstWords;
    parts.retention->repeat.later_words = kLaterWords;
    parts.retention->repeat.end_words = kEndWords;
  }
  auto model = CreateModel(*std::move(weights), std::move(parts));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::unique_ptr<SequenceCache> RetainedModelTest::NewCache(const Model& model, int n_tokens) {
  auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
  cache->set_n_prompt(kPrompt, n_tokens - kPrompt);
  return cache;
}

void RetainedModelTest::Read(Model* model, SequenceCache* cache, int n_tokens, int chunk,
                             Matrix* logits) {
  while (cache->n_tokens() < n_tokens) {
    const int begin = cache->n_tokens();
    if (cache->must_read_again()) {
      const Status again = model->ReadPromptAgain(cache, ids_, chunk);
      ASSERT_TRUE(again.ok()) << again;
    }
    const int n = static_cast<int>(std::min<int64_t>({chunk, n_tokens - begin, cache->max_step()}));
    const Status extended = cache->Extend(n);
    ASSERT_TRUE(extended.ok()) << extended;
    const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
    const Status status = model->Forward({&step, 1});
    ASSERT_TRUE(status.ok()) << status;
    for (int t = 0; t < n; ++t) {
      logits->emplace_back(model->logits(t).begin(), model->logits(t).end());
    }
    // Where heads keep numbers of their own, these are not known before.
    if (!model->layout().DropsByHead() || cache->n_tokens() < kPrompt) {
      ASSERT_EQ(cache->bytes().total(),
                SequenceBytes(model->layout(), cache->n_tokens(), n, kPrompt));
    }
    ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
  }
}

void RetainedModelTest::Step(Model* model, SequenceCache* cache, int n) {
  const int begin = cache->n_tokens();
  ASSERT_TRUE(cache->Extend(n).ok());
  const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kLast};
  const Status status = model->Forward({&step, 1});
  ASSERT_TRUE(status.ok()) << status;
}

RepeatLiterally::Votes RetainedModelTest::VotesOfRepeat(
    const testing::ReferenceRetention& literal, int chunk,
    const std::vector<testing::ReferenceBasis>& bases, bool has_whole_keys) {
  const std::vector<int> context(ids_.begin(), ids_.begin() + kPrompt - 1);
  RepeatLiterally votes(reference_.n_layers, reference_.n_kv_heads, literal.n_sink, kPrompt - 1);
  for (int begin = 0; begin < kPrompt - 1; begin += chunk) {
    std::vector<int> ids = context;
    const std::vector<int32_t>& words = begin == 0 ? kFirstWords : kLaterWords;
    ids.insert(ids.end(), words.begin(), words.end());
    for (int i = std::max(0, begin - 8); i < begin; ++i) ids.push_back(context[i]);
    ids.insert(ids.end(), kEndWords.begin(), kEndWords.end());
    for (int i = begin; i < std::min(kPrompt - 1, begin + chunk); ++i) ids.push_back(context[i]);
    votes.BeginChunk();
    testing::ReferenceLogits(
        reference_, ids, bases, literal.n_sink,
        [&](int layer, testing::ReferenceRows* rows) { votes(layer, rows); }, nullptr,
        has_whole_keys ? static_cast<int>(ids.size()) : 0);
  }
  return votes.votes();
}

std::vector<int> RetainedModelTest::Positions(const SequenceCache& cache, int layer_idx,
                                              int kv_head_idx) {
  std::vector<int> positions;
  const CpuAccess access(cache.device());
  const EntryTable table = EntryTableAt(access, cache.head(layer_idx, kv_head_idx).entries());
  for (int e = 0; e < cache.head(layer_idx, kv_head_idx).n_entries(); ++e) {
    positions.push_back(table.position(e));
  }
  std::ranges::sort(positions);
  return positions;
}

double RetainedModelTest::LargestDifference(const Matrix& a, const Matrix& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      largest = std::max(largest, std::abs(a[t][i] - b[t][i]));
    }
  }
  return largest;
}

const std::vector<testing::ReferenceBasis>& RetainedModelTest::BasesOf(std::string_view spec) {
  if (spec.starts_with("fdc")) return maps_;
  return spec.starts_with("palu(group=2)") ? shared_latents_ : latents_;
}

void RetainedModelTest::KeepsWhatTheLiteralMethodKeeps() {
  ReferenceRetention literal = GetParam().literal;
  literal.n_prompt = kPrompt;
  literal.n_generated = kTokens - kPrompt;
  testing::RetainLiterally retain(literal, reference_.n_layers, reference_.n_kv_heads);
  const std::vector<int> ids(ids_.begin(), ids_.begin() + kTokens);
  std::vector<testing::ReferenceBasis> bases;
  if (GetParam().has_latents || GetParam().has_maps()) bases = BasesOf(GetParam().spec);
  const int n_whole_keys = ReadsWholeKeys(GetParam().spec) ? kPrompt : 0;
  if (GetParam().chunk > 0) {
    retain.SetVotes(VotesOfRepeat(literal, GetParam().chunk, bases, n_whole_keys > 0));
  }
  std::vector<int> n_seen(reference_.n_layers);
  const Matrix want = testing::ReferenceLogits(
      reference_, ids, bases, literal.n_sink,
      [&](int layer, testing::ReferenceRows* rows) {
        retain(layer, rows);
        if (++n_seen[layer] != n_whole_keys) return;
        testing::MapKeys(reference_, layer, bases, literal.n_sink, rows);
      },
      nullptr, n_whole_keys);
  const Matrix plain = testing::ReferenceLogits(reference_, ids, bases, literal.n_sink);
  const double loss = LargestDifference(want, plain);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, GetParam().spec);
    for (const int chunk : {512, 1, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      Matrix logits;
      Read(model.get(), cache.get(), kTokens, chunk, &logits);
      if (HasFatalFailure()) return;
      // Where nothing is dropped any more, positions are gone too, and the logits tell.
      for (int l = 0; l < reference_.n_layers && !cache->head(l, 0).entries().empty(); ++l) {
        for (int g = 0; g < reference_.n_kv_heads; ++g) {
          EXPECT_EQ(Positions(*cache, l, g), retain.Positions(l, g))
              << "layer " << l << " head " << g;
        }
      }
      EXPECT_LT(LargestDifference(logits, want), 0.002 * loss);
    }
  }
}

}  // namespace kvlathe
