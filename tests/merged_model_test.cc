// The forward with positions merged into entries against the literal decoder that merges one token
// after the other (methods.md 10.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/retention/method.h"
#include "model/model.h"
#include "random_model.h"
#include "reference_decoder.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceBasis;
using testing::ReferenceDmc;
using testing::ReferenceMerging;
using testing::ReferenceModel;

constexpr int kTokens = 260;

constexpr ReferenceDmc kCode;  // as the released code decides
constexpr ReferenceDmc kPaper = {
    .is_last = false, .offset = 0, .epsilon = 0, .zeroes_after_rope = false};

struct Case {
  const char* spec;
  ReferenceMerging merging;
  int n_sink = 0;
  std::optional<ReferenceDmc> dmc;
  int n_kv_heads = 2;
  bool has_basis = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec; }

const Case kCases[] = {
    {"dmc(sink=0)", {0, 12}, 0, kCode},
    {"dmc(window=3,sink=4)", {0, 3}, 4, kCode},
    {"dmc(window=0,sink=0)", {0, 0}, 0, kPaper, 4},
    {"dmc(window=1,sink=1)", {0, 1}, 1, kPaper},
    {"fdc(sink=4)+dmc", {0, 12}, 4, kCode, 2, true},
    {"pool(n=4,sink=0)", {4, 0}, 0, std::nullopt},
    {"pool(n=3,sink=4)", {3, 0}, 4, kCode},
    {"fdc(sink=0)+pool(n=2)", {2, 0}, 0, std::nullopt, 4, true},
};

double LargestDifference(const Matrix& a, const Matrix& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      largest = std::max(largest, std::abs(a[t][i] - b[t][i]));
    }
  }
  return largest;
}

class MergedModel : public ::testing::TestWithParam<Case> {
 protected:
  MergedModel() : directory_(testing::FreshDirectory("merged_model")) {
    std::mt19937_64 random(8);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 97));
  }
  ~MergedModel() override { std::filesystem::remove_all(directory_); }

  void Write(const Case& c) {
    reference_ = testing::WriteRandomModel({.n_heads = 4,
                                            .n_kv_heads = c.n_kv_heads,
                                            .head_dim = 32,
                                            .attention_bias = true,
                                            .dmc = c.dmc},
                                           directory_, 31);
    if (c.has_basis) bases_ = testing::RandomBases(reference_, 5);
  }

  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text) {
    const auto spec = Spec::Parse(spec_text);
    EXPECT_TRUE(spec.ok() && CheckSupported(*spec).ok()) << spec.status();
    const std::optional<RetentionPlan> plan = RetentionPlanOf(*spec);
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory_), type,
                                      MakeFileSource(*std::move(reader)), &threads_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const ModelBasis basis = testing::ToModelBasis(reference_, bases_);
    auto model =
        Model::Create(*std::move(weights), bases_.empty() ? nullptr : &basis, spec->n_sink(),
                      &threads_, isa, nullptr, plan.has_value() ? &*plan : nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`. After each,
  // what the pool gave out is what entries of these numbers take.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, Matrix* logits) {
    while (cache->n_tokens() < n_tokens) {
      const int begin = cache->n_tokens();
      const int n = std::min(chunk, n_tokens - begin);
      const Status extended = cache->Extend(n);
      ASSERT_TRUE(extended.ok()) << extended;
      const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      ASSERT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits->emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      const std::vector<int> lengths = Lengths(*cache, model->layout());
      ASSERT_EQ(cache->bytes().total(), MergedParts(model->layout(), lengths).total());
      ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
    }
  }

  static std::vector<int> Lengths(const SequenceCache& cache, const CacheLayout& layout) {
    std::vector<int> lengths;
    for (int l = 0; l < layout.n_layers; ++l) {
      for (int g = 0; g < layout.n_kv_heads; ++g) {
        lengths.push_back(std::max(0, cache.n_entries(l, g)));
      }
    }
    return lengths;
  }

  // Logits of the literal decoder, and how many entries its heads have in the end.
  Matrix Literally(const ReferenceMerging* merging, int n_sink, std::vector<int>* lengths) {
    const std::vector<int> ids(ids_.begin(), ids_.end());
    lengths->assign(reference_.n_layers * reference_.n_kv_heads, 0);
    return testing::ReferenceLogits(
        reference_, ids, bases_, n_sink,
        [&](int layer, testing::ReferenceRows* rows) {
          for (int g = 0; g < reference_.n_kv_heads; ++g) {
            (*lengths)[layer * reference_.n_kv_heads + g] =
                static_cast<int>(rows->keys[g].size()) - n_sink;
          }
        },
        merging);
  }

  std::string directory_;
  ReferenceModel reference_;
  std::vector<ReferenceBasis> bases_;
  std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  BlockPool pool_{int64_t{64} << 20};
};

TEST_P(MergedModel, MergesAsTheLiteralMethodDoes) {
  const Case& c = GetParam();
  Write(c);
  std::vector<int> lengths, all;
  const Matrix want = Literally(&c.merging, c.n_sink, &lengths);
  const double loss = LargestDifference(want, Literally(nullptr, c.n_sink, &all));
  ASSERT_GT(loss, 0.1);
  ASSERT_LT(lengths[0], kTokens * 3 / 4);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
    for (const int chunk : {512, 1, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      SequenceCache cache(&model->layout(), &pool_);
      Matrix logits;
      Read(model.get(), &cache, kTokens, chunk, &logits);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Lengths(cache, model->layout()), lengths);
      EXPECT_LT(LargestDifference(logits, want), 0.002 * loss);
    }
  }
}

// Neither the way a text is cut nor what else is in the batch changes a bit of a deterministic
// model; and a batch of any model gives what its sequences give alone.
TEST_P(MergedModel, BatchesMergeTheSame) {
  const Case& c = GetParam();
  Write(c);
  for (const bool is_deterministic : {true, false}) {
    std::unique_ptr<Model> model =
        Load(AvailableIsas().back(), is_deterministic ? DType::kBf16 : DType::kF32, c.spec);
    model->set_deterministic(is_deterministic);
    Matrix alone;
    SequenceCache single(&model->layout(), &pool_);
    Read(model.get(), &single, kTokens, 512, &alone);
    if (HasFatalFailure()) return;
    std::vector<std::unique_ptr<SequenceCache>> caches;
    for (int i = 0; i < 3; ++i) {
      caches.push_back(std::make_unique<SequenceCache>(&model->layout(), &pool_));
    }
    for (int round = 0; caches.back()->n_tokens() < kTokens; ++round) {
      std::vector<SequenceStep> steps;
      for (int i = 0; i < 3; ++i) {
        const int begin = caches[i]->n_tokens(), n = std::min(i == 1 ? 1 : 31, kTokens - begin);
        if (round < 7 * i || n == 0) continue;
        ASSERT_TRUE(caches[i]->Extend(n).ok());
        steps.push_back({caches[i].get(), std::span(ids_).subspan(begin, n)});
      }
      ASSERT_TRUE(model->Forward(steps).ok());
      for (size_t s = 0; s < steps.size(); ++s) {
        const int n_tokens = steps[s].cache->n_tokens();
        const Matrix got = {{model->logits(s).begin(), model->logits(s).end()}};
        const double difference = LargestDifference(got, {alone[n_tokens - 1]});
        ASSERT_LE(difference, is_deterministic ? 0 : 1e-3) << n_tokens;
      }
    }
    EXPECT_EQ(Lengths(*caches[2], model->layout()), Lengths(single, model->layout()));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, MergedModel, ::testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.spec;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
});

// Where nothing ever merges nothing changes, and where everything does one entry is left.
TEST_F(MergedModel, ExtremeDecisionsAreNoneAndOneEntry) {
  for (const double offset : {50.0, -50.0}) {
    Write({.spec = "", .dmc = kCode});
    // The biases of the deciding channel stay where they are.
    auto config = nlohmann::json::parse(std::ifstream(directory_ + "/config.json"));
    config["dmc"]["offset"] = offset;
    std::ofstream(directory_ + "/config.json") << config.dump();
    std::unique_ptr<Model> merged = Load(AvailableIsas().back(), DType::kF32, "dmc(sink=0)");
    SequenceCache cache(&merged->layout(), &pool_);
    Matrix logits, plain;
    Read(merged.get(), &cache, kTokens, 64, &logits);
    if (HasFatalFailure()) return;
    EXPECT_EQ(Lengths(cache, merged->layout()), std::vector<int>(4, offset < 0 ? 1 : kTokens));
    if (offset < 0) continue;
    cache.Clear();
    std::unique_ptr<Model> none = Load(AvailableIsas().back(), DType::kF32, "none");
    SequenceCache whole(&none->layout(), &pool_);
    ASSERT_TRUE(whole.Extend(kTokens).ok());
    const SequenceStep step{&whole, ids_, SequenceStep::Logits::kAll};
    ASSERT_TRUE(none->Forward({&step, 1}).ok());
    for (int t = 0; t < kTokens; ++t) {
      plain.emplace_back(none->logits(t).begin(), none->logits(t).end());
    }
    EXPECT_LT(LargestDifference(logits, plain), 1e-4);
  }
}

// Merged positions take no memory: what they gave back admits another sequence.
TEST_F(MergedModel, MergedPositionsAreFreeForOthers) {
  Write({.spec = ""});
  std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kF32, "pool(n=8,sink=0)");
  const std::vector<int> lengths(4, (kTokens + 7) / 8);
  const int64_t n_bytes = MergedParts(model->layout(), lengths).total();
  EXPECT_EQ(SequenceBytes(model->layout(), kTokens), n_bytes);
  BlockPool pool(PeakSequenceBytes(model->layout(), kTokens, 64) + 3 * n_bytes);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  const auto read = [&]() -> Status {
    caches.push_back(std::make_unique<SequenceCache>(&model->layout(), &pool));
    while (caches.back()->n_tokens() < kTokens) {
      const int begin = caches.back()->n_tokens(), n = std::min(64, kTokens - begin);
      KVL_RETURN_IF_ERROR(caches.back()->Extend(n));
      const SequenceStep step{caches.back().get(), std::span(ids_).subspan(begin, n)};
      KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
    }
    return OkStatus();
  };
  for (int i = 1; i <= 4; ++i) {
    const Status status = read();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(pool.usage().used_bytes, i * n_bytes);
  }
}

TEST_F(MergedModel, RefusesToDecideWhereTheModelDoesNot) {
  Write({.spec = ""});
  auto reader = SafetensorsReader::OpenModel(directory_);
  auto weights = ModelWeights::Load(*LoadModelConfig(directory_), DType::kF32,
                                    MakeFileSource(*std::move(reader)), &threads_);
  const std::optional<RetentionPlan> plan = RetentionPlanOf(*Spec::Parse("dmc"));
  const auto model = Model::Create(*std::move(weights), nullptr, 4, &threads_,
                                   AvailableIsas().back(), nullptr, &*plan);
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().ToString().find("retrofitted"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
