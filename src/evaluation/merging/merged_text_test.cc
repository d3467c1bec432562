#include "evaluation/merging/merged_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kBudgetBytes = 64 << 20;

class ReadMergedTextsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ModelConfig config = SmallConfig();
    // Random channels lie on both sides of 0.
    config.dmc = DmcConfig{.is_last = true, .offset = 0, .weight_offset = 0, .epsilon = 0};
    auto weights = ModelWeights::Load(config, DType::kF32, MakeRandomSource(5),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
  }
  std::unique_ptr<Model> Make(const char* kv, int n_sink) {
    PlanParts parts = PartsOf(*Spec::Parse(kv));
    parts.n_sink = n_sink;
    auto model = CreateModel(weights_, std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  static std::vector<std::vector<int32_t>> Texts(int n_texts, int n_tokens) {
    std::vector<std::vector<int32_t>> texts(n_texts);
    for (int i = 0; i < n_texts; ++i) {
      for (int t = 0; t < n_tokens; ++t) texts[i].push_back((t * 37 + t / 11 + 5 * i) % 128);
    }
    return texts;
  }

  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
};

TEST_F(ReadMergedTextsTest, PooledEntriesBeginWherePoolSays) {
  const auto model = Make("pool(n=4)", 2);
  const auto texts = ReadMergedTexts(model.get(), Texts(2, 50), kBudgetBytes, {});
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->size(), 2u);
  for (const MergedText& text : *texts) {
    ASSERT_EQ(text.begins.size(), 50u * 4);
    for (int t = 0; t < 50; ++t) {
      for (int h = 0; h < 4; ++h) EXPECT_EQ(text.Begins(t, h), t < 2 || (t - 2) % 4 == 0) << t;
    }
    EXPECT_EQ(text.Entries(3, 50), 2 + 12);
  }
}

// Read token by token or in one step, the cache holds the same entries.
TEST_F(ReadMergedTextsTest, CountsTheEntriesOfAPromptReadAtOnce) {
  for (const char* kv : {"dmc", "dmc+kivi(bits=4,group=32,run=64)"}) {
    const auto model = Make(kv, 4);
    const auto tokens = Texts(2, 200);
    const auto texts = ReadMergedTexts(model.get(), tokens, kBudgetBytes, {});
    ASSERT_TRUE(texts.ok()) << texts.status();
    for (const int n : {1, 3, 90, 200}) {
      for (int i = 0; i < 2; ++i) {
        HostPool pool(kBudgetBytes);
        SequenceCache cache(&model->layout(), &pool);
        ASSERT_TRUE(Prefill(model.get(), &cache, std::span(tokens[i]).first(n)).ok());
        for (int h = 0; h < 4; ++h) {
          const int64_t entries = (*texts)[i].Entries(h, n);
          EXPECT_EQ(entries, 4 + cache.head(h / 2, h % 2).n_entries()) << kv << " " << n;
          if (n < 200) continue;
          EXPECT_GT(entries, 20);  // some of both, or nothing is seen here
          EXPECT_LT(entries, 180);
        }
      }
    }
  }
}

TEST_F(ReadMergedTextsTest, RefusesWhatCannotBeMeasured) {
  const auto message = [&](const char* kv, std::vector<std::vector<int32_t>> texts) {
    const auto merged = ReadMergedTexts(Make(kv, 0).get(), texts, kBudgetBytes, {});
    EXPECT_EQ(merged.status().code(), StatusCode::kInvalidArgument);
    return MessageOf(merged.status());
  };
  EXPECT_THAT(message("none", Texts(1, 8)), HasSubstr("merges nothing"));
  EXPECT_THAT(message("dmc", {}), HasSubstr("empty"));
  EXPECT_THAT(message("dmc", {{}}), HasSubstr("empty"));
  EXPECT_THAT(message("dmc", {{1, 2}, {1}}), HasSubstr("differ in length"));
  const auto full = ReadMergedTexts(Make("dmc", 0).get(), Texts(1, 8), 64, {});
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
}

// Two heads, 20 tokens: one never merges, the other merges every other position.
MergedText HandMade() {
  MergedText text{.n_layers = 2, .n_kv_heads = 1, .n_tokens = 20, .begins = {}};
  for (int t = 0; t < 20; ++t) {
    text.begins.push_back(1);
    text.begins.push_back(t % 2 == 0);
  }
  return text;
}

TEST(CompressionTest, IsPositionsOverEntries) {
  MergedText merges_all = HandMade();
  for (int t = 0; t < 20; ++t) merges_all.begins[2 * t + 1] = t == 0;
  const std::vector<MergedText> texts = {HandMade(), merges_all};
  EXPECT_THAT(CompressionByHead(std::span(texts).first(1)), ElementsAre(1, 2));
  EXPECT_THAT(CompressionByHead(texts), ElementsAre(1, 40.0 / 11));
  const std::vector<LengthCompression> lengths = CompressionByLength(texts);
  ASSERT_EQ(lengths.size(), 2u);
  EXPECT_EQ(lengths[0].n_tokens, 16);
  EXPECT_DOUBLE_EQ(lengths[0].all, 64.0 / (16 + 16 + 8 + 1));
  EXPECT_EQ(lengths[1].n_tokens, 20);
  EXPECT_DOUBLE_EQ(lengths[1].least, 1);
  EXPECT_DOUBLE_EQ(lengths[1].most, 40.0 / 11);
}

TEST(AlphaByPositionTest, IsTheShareThatJoins) {
  const std::vector<MergedText> texts = {HandMade()};
  const std::vector<AlphaRange> ranges = AlphaByPosition(texts);
  ASSERT_EQ(ranges.size(), 20u);
  for (const AlphaRange& range : ranges) {
    EXPECT_EQ(range.end, range.begin + 1);
    EXPECT_EQ(range.alpha, range.begin % 2 == 0 ? 0 : 0.5);
  }
  MergedText longer{.n_layers = 1, .n_kv_heads = 1, .n_tokens = 70, .begins = {}};
  for (int t = 0; t < 70; ++t) longer.begins.push_back(t % 3 == 0);
  const std::vector<AlphaRange> wide = AlphaByPosition({&longer, 1});
  ASSERT_EQ(wide.size(), 24u);
  EXPECT_DOUBLE_EQ(wide[1].alpha, 2.0 / 3);
  EXPECT_EQ(wide.back().end, 70);
  EXPECT_EQ(wide.back().begin, 69);
}

}  // namespace
}  // namespace kvlathe
