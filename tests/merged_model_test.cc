// The forward with positions merged into entries against the literal decoder that merges one token
// after the other (docs/methods/dmc.md), and with what is closed sealed by the literal quantiser.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceBasis;
using testing::ReferenceDmc;
using testing::ReferenceMerging;
using testing::ReferenceModel;
using testing::ReferenceQuantizer;

constexpr int kTokens = 260, kPrompt = 210;
constexpr int kSealedTokens = 480;  // enough to seal behind the prompt as well

constexpr ReferenceDmc kCode;  // as the released code decides
constexpr ReferenceDmc kPaper = {
    .is_last = false, .offset = 0, .weight_offset = 1.5, .epsilon = 0, .zeroes_after_rope = false};

struct Case {
  const char* spec;
  ReferenceMerging merging;
  int n_sink = 0;
  std::optional<ReferenceDmc> dmc;
  int n_kv_heads = 2;
  bool has_basis = false;
  std::optional<ReferenceQuantizer> quantizer = std::nullopt;

  int n_tokens() const { return quantizer.has_value() ? kSealedTokens : kTokens; }
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

const Case kSealedCases[] = {
    {"dmc(sink=0)+kivi(bits=2,group=32)",
     {0, 12},
     0,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 32}},
    {"dmc(sink=3)+token(bits=3,group=16,buffer=128,newest=20)",
     {0, 12},
     3,
     kPaper,
     4,
     false,
     ReferenceQuantizer{
         .name = "token", .bits = 3, .group = 16, .buffer = 128, .newest = 20, .n_sink = 3}},
    {"dmc(window=0,sink=4)+q4_0",
     {0, 0},
     4,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "q4_0", .bits = 4, .n_sink = 4}},
    // Exact entries of V are those of its own head: 3 at either end of 32 channels.
    {"fdc(sink=1)+dmc+kivi(bits=2,group=64)+sparse(share=0.2)",
     {0, 12},
     1,
     kPaper,
     2,
     true,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 64, .n_sink = 1, .sparse_share = 0.2}},
};

// Every head seals its closed entries where the prompt ends, and a buffer of them at most wherever
// a buffer of positions has come since.
class SealClosedLiterally {
 public:
  SealClosedLiterally(const ReferenceQuantizer& quantizer, const ReferenceModel& model)
      : q_(quantizer),
        n_seen_(model.n_layers),
        n_sealed_(model.n_layers, std::vector<int>(model.n_kv_heads)) {}

  void operator()(int layer, testing::ReferenceRows* rows) {
    const int n_behind = ++n_seen_[layer] - kPrompt;
    if (n_behind < 0 || n_behind % q_.buffer != 0) return;
    for (size_t g = 0; g < rows->keys.size(); ++g) {
      const int n_closed =
          std::max(0, static_cast<int>(rows->keys[g].size()) - q_.n_sink - 1 - q_.newest);
      const int begin = n_sealed_[layer][g];
      int end = begin;
      if (n_behind == 0) end = n_closed - n_closed % 64;
      if (n_behind > 0 && n_closed - begin >= q_.buffer) end = begin + q_.buffer;
      testing::SealHeadLiterally(q_, begin, end, &rows->keys[g], &rows->values[g]);
      n_sealed_[layer][g] = end;
    }
  }

  const std::vector<std::vector<int>>& n_sealed() const { return n_sealed_; }

 private:
  ReferenceQuantizer q_;
  std::vector<int> n_seen_;
  std::vector<std::vector<int>> n_sealed_;  // entries, [layer][kv head]
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
    for (int i = 0; i < kSealedTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 97));
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
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory_), type,
                                      MakeFileSource(*std::move(reader)), &threads_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const ModelBasis basis = testing::ToModelBasis(reference_, bases_);
    auto model = CreateModel(*std::move(weights), PartsOf(*spec, bases_.empty() ? nullptr : &basis),
                             &threads_, isa);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`. After each,
  // what the pool gave out is what entries of these numbers take.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, Matrix* logits) {
    while (cache->n_tokens() < n_tokens) {
      const int begin = cache->n_tokens();
      const int n =
          static_cast<int>(std::min<int64_t>({chunk, n_tokens - begin, cache->max_step()}));
      const Status extended = cache->Extend(n);
      ASSERT_TRUE(extended.ok()) << extended;
      const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      ASSERT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits->emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      ASSERT_EQ(cache->bytes().total(), BytesByLengths(*cache, model->layout()));
      ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
    }
  }

  static std::vector<int> Lengths(const SequenceCache& cache, const CacheLayout& layout) {
    std::vector<int> lengths;
    for (int l = 0; l < layout.n_layers; ++l) {
      for (int g = 0; g < layout.n_kv_heads; ++g) {
        lengths.push_back(std::max(0, cache.head(l, g).n_entries()));
      }
    }
    return lengths;
  }

  static int64_t BytesByLengths(const SequenceCache& cache, const CacheLayout& layout) {
    std::vector<MergedLength> lengths;
    for (int l = 0; l < layout.n_layers; ++l) {
      for (int g = 0; g < layout.n_kv_heads; ++g)
        lengths.push_back(cache.head(l, g).merged_length());
    }
    return MergedParts(layout, lengths).total();
  }

  std::unique_ptr<SequenceCache> NewCache(const Model& model, const Case& c) {
    auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
    if (c.quantizer.has_value()) cache->set_n_prompt(kPrompt);
    return cache;
  }

  // Logits of the literal decoder, and how many entries its heads have in the end.
  Matrix Literally(const Case& c, const ReferenceMerging* merging, SealClosedLiterally* seal,
                   std::vector<int>* lengths) {
    const std::vector<int> ids(ids_.begin(), ids_.begin() + c.n_tokens());
    lengths->assign(reference_.n_layers * reference_.n_kv_heads, 0);
    return testing::ReferenceLogits(
        reference_, ids, bases_, c.n_sink,
        [&](int layer, testing::ReferenceRows* rows) {
          for (int g = 0; g < reference_.n_kv_heads; ++g) {
            (*lengths)[layer * reference_.n_kv_heads + g] =
                static_cast<int>(rows->keys[g].size()) - c.n_sink;
          }
          if (seal != nullptr) (*seal)(layer, rows);
        },
        merging);
  }

  void ExpectBatchesMergeTheSame();

  std::string directory_;
  ReferenceModel reference_;
  std::vector<ReferenceBasis> bases_;
  std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  BlockPool pool_{int64_t{64} << 20};
};

class SealedMergedModel : public MergedModel {};

TEST_P(MergedModel, MergesAsTheLiteralMethodDoes) {
  const Case& c = GetParam();
  Write(c);
  std::vector<int> lengths, all;
  const Matrix want = Literally(c, &c.merging, nullptr, &lengths);
  const double loss = LargestDifference(want, Literally(c, nullptr, nullptr, &all));
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

TEST_P(SealedMergedModel, SealsWhatIsClosedAsTheLiteralMethodDoes) {
  const Case& c = GetParam();
  Write(c);
  std::vector<int> lengths;
  const Matrix unsealed = Literally(c, &c.merging, nullptr, &lengths);
  SealClosedLiterally seal(*c.quantizer, reference_);
  const Matrix want = Literally(c, &c.merging, &seal, &lengths);
  const double loss = testing::RootMeanSquare(want, unsealed);
  ASSERT_GT(loss, 1e-3);
  std::set<int> n_sealed;
  for (const std::vector<int>& layer : seal.n_sealed()) n_sealed.insert(layer.begin(), layer.end());
  ASSERT_GT(n_sealed.size(), 1u);  // heads differ
  ASSERT_GE(*n_sealed.rbegin(), 64 + c.quantizer->buffer);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
    for (const int chunk : {512, 1, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model, c);
      Matrix logits;
      Read(model.get(), cache.get(), c.n_tokens(), chunk, &logits);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Lengths(*cache, model->layout()), lengths);
      EXPECT_LT(testing::RootMeanSquare(logits, want), 0.02 * loss);
      for (int l = 0; l < reference_.n_layers; ++l) {
        for (int g = 0; g < c.n_kv_heads; ++g) {
          EXPECT_EQ(cache->head(l, g).merged_length().n_sealed_blocks * 64, seal.n_sealed()[l][g]);
        }
      }
    }
  }
}

// Neither the way a text is cut nor what else is in the batch changes a bit of a deterministic
// model; and a batch of any model gives what its sequences give alone.
void MergedModel::ExpectBatchesMergeTheSame() {
  const Case& c = GetParam();
  Write(c);
  for (const bool is_deterministic : {true, false}) {
    std::unique_ptr<Model> model =
        Load(AvailableIsas().back(), is_deterministic ? DType::kBf16 : DType::kF32, c.spec);
    model->set_deterministic(is_deterministic);
    Matrix alone;
    const std::unique_ptr<SequenceCache> single = NewCache(*model, c);
    Read(model.get(), single.get(), c.n_tokens(), 512, &alone);
    if (HasFatalFailure()) return;
    std::vector<std::unique_ptr<SequenceCache>> caches;
    for (int i = 0; i < 3; ++i) {
      caches.push_back(NewCache(*model, c));
    }
    for (int round = 0; caches.back()->n_tokens() < c.n_tokens(); ++round) {
      std::vector<SequenceStep> steps;
      for (int i = 0; i < 3; ++i) {
        const int begin = caches[i]->n_tokens();
        const int n = static_cast<int>(
            std::min<int64_t>({i == 1 ? 1 : 31, c.n_tokens() - begin, caches[i]->max_step()}));
        if (round < 7 * i || n == 0) continue;
        ASSERT_TRUE(caches[i]->Extend(n).ok());
        steps.push_back({caches[i].get(), std::span(ids_).subspan(begin, n)});
      }
      ASSERT_TRUE(model->Forward(steps).ok());
      for (size_t s = 0; s < steps.size(); ++s) {
        const int n_tokens = steps[s].cache->n_tokens();
        const Matrix got = {{model->logits(s).begin(), model->logits(s).end()}};
        const double difference = LargestDifference(got, {alone[n_tokens - 1]});
        // A row may round to the neighbouring code.
        const double most = c.quantizer.has_value() ? 0.05 : 1e-3;
        ASSERT_LE(difference, is_deterministic ? 0 : most) << n_tokens;
      }
    }
    EXPECT_EQ(Lengths(*caches[2], model->layout()), Lengths(*single, model->layout()));
  }
}

TEST_P(MergedModel, BatchesMergeTheSame) { ExpectBatchesMergeTheSame(); }
TEST_P(SealedMergedModel, BatchesMergeAndSealTheSame) { ExpectBatchesMergeTheSame(); }

std::string NameOf(const ::testing::TestParamInfo<Case>& test) {
  std::string name = test.param.spec;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Specs, MergedModel, ::testing::ValuesIn(kCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Specs, SealedMergedModel, ::testing::ValuesIn(kSealedCases), NameOf);

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
    const SequenceStep step{&whole, std::span(ids_).first(kTokens), SequenceStep::Logits::kAll};
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
  const std::vector<MergedLength> lengths(4, {.n_entries = (kTokens + 7) / 8});
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
  const auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse("dmc")), &threads_,
                                 AvailableIsas().back());
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().ToString().find("retrofitted"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
