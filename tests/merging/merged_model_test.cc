// The forward with positions merged into entries against the literal decoder that merges one token
// after the other (docs/methods/dmc.md).
#include "merged_model.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "kv/blocks/host_pool_fixture.h"
#include "kv/retention/retention_methods.h"
#include "model/planned_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;

const MergedCase kCases[] = {
    {"dmc(sink=0)", {0, 12}, 0, kCode},
    {"dmc(window=3,sink=4)", {0, 3}, 4, kCode},
    {"dmc(window=0,sink=0)", {0, 0}, 0, kPaper, 4},
    {"dmc(window=1,sink=1)", {0, 1}, 1, kPaper},
    {"fdc(sink=4)+dmc", {0, 12}, 4, kCode, 2, true},
    {"pool(n=4,sink=0)", {4, 0}, 0, std::nullopt},
    {"pool(n=3,sink=4)", {3, 0}, 4, kCode},
    {"fdc(sink=0)+pool(n=2)", {2, 0}, 0, std::nullopt, 4, true},
};

TEST_P(MergedModel, MergesAsTheLiteralMethodDoes) {
  const MergedCase& c = GetParam();
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

TEST_P(MergedModel, BatchesMergeTheSame) { ExpectBatchesMergeTheSame(); }

INSTANTIATE_TEST_SUITE_P(Specs, MergedModel, ::testing::ValuesIn(kCases), NameOfCase);

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
  HostPool pool(PeakSequenceBytes(model->layout(), kTokens, 64) + 3 * n_bytes);
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

// Either channel, either way after RoPE, and offsets of their own: each field is honoured, and each
// makes a difference that a model which ignored it would show.
TEST_F(MergedModel, EveryFieldOfTheConventionCounts) {
  const testing::ReferenceDmc base = {.is_last = true, .offset = 3, .weight_offset = -0.7};
  std::vector<testing::ReferenceDmc> variants(6, base);
  variants[1].is_last = false;
  variants[2].zeroes_after_rope = false;
  variants[3].is_last = variants[3].zeroes_after_rope = false;
  variants[4].weight_offset = 2;
  variants[5].epsilon = 0.5;
  std::vector<Matrix> all;
  for (const testing::ReferenceDmc& dmc : variants) {
    const MergedCase c = {"dmc(sink=0)", {0, 12}, 0, dmc};
    Write(c);
    const auto config = nlohmann::json::parse(std::ifstream(directory_ + "/config.json"));
    EXPECT_EQ(config["dmc"]["weight_offset"], dmc.weight_offset);
    std::vector<int> lengths;
    const Matrix want = Literally(c, &c.merging, nullptr, &lengths);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kF32, c.spec);
    SequenceCache cache(&model->layout(), &pool_);
    Matrix got;
    Read(model.get(), &cache, kTokens, 64, &got);
    if (HasFatalFailure()) return;
    EXPECT_EQ(Lengths(cache, model->layout()), lengths);
    EXPECT_LT(LargestDifference(got, want), 1e-4);
    all.push_back(got);
  }
  for (const auto& [a, b] : {std::pair(0, 2), std::pair(1, 3), std::pair(0, 1), std::pair(0, 5)}) {
    EXPECT_GT(LargestDifference(all[a], all[b]), 1e-3) << a << " and " << b;
  }
}

TEST_F(MergedModel, RefusesToDecideWhereTheModelDoesNot) {
  Write({.spec = ""});
  auto reader = SafetensorsReader::OpenModel(directory_);
  auto weights = ModelWeights::Load(*LoadModelConfig(directory_), DType::kF32,
                                    MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads_, AvailableIsas().back()));
  const auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse("dmc")));
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().ToString().find("retrofitted"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
