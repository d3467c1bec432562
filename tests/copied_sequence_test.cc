// A copy of a sequence goes on with the bits that the original would have gone on with.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "evaluation/bench/bench_model.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "kv/spec/spec.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"

namespace kvlathe {
namespace {

constexpr int64_t kBudgetBytes = int64_t{64} << 20;

ModelConfig MergingConfig() {
  ModelConfig c = SmallConfig();
  c.dmc = DmcConfig{.offset = 0};  // random weights merge half of the positions
  return c;
}

enum class Basis { kNone, kPlain, kSplit, kSplitLatents, kSharedLatents, kOnline };

ModelBasis DrawBasis(Basis kind) {
  switch (kind) {
    case Basis::kNone:
      return {};
    case Basis::kPlain:
      return DrawRandomBasis(2, 2, 32, 0.3, 9);
    case Basis::kSplit: {
      ModelBasis split = DrawRandomSplitBasis(2, 2, 32, 4, 9);
      for (size_t h = 0; h < split.heads.size(); h += 2) split.heads[h].k_bits.scaled = 16;
      split.heads[1].has_whole_open_rows = true;
      return split;
    }
    case Basis::kSplitLatents:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, /*has_latent_keys=*/true);
    case Basis::kSharedLatents:
      return DrawRandomBasis(2, 2, 32, 0.3, 9, /*has_latent_keys=*/true, /*heads_per_latent=*/2);
    case Basis::kOnline: {
      ModelBasis online{2, 2, 32, {{16, 32}, {32, 16}, {16, 16}, {32, 32}}};
      online.online = OnlineInputs{.output_grams{4, std::vector<double>(32 * 32, 0.5)}};
      return online;
    }
  }
  return {};
}

struct Case {
  const char* name;
  const char* spec;
  Basis basis = Basis::kNone;
};

// Everything that a sequence can hold: plain blocks, sinks, runs with and without records, records
// that a layer shares, a window, positions and votes, entries that still merge, queries gathered
// for a basis, and combinations of them.
constexpr Case kCases[] = {
    {"Uncompressed", "none"},
    {"Basis", "fdc(rate=0.3)", Basis::kPlain},
    {"Kivi", "kivi(bits=2,run=64)"},
    {"BasisGear", "fdc(rate=0.3)+gear(bits=4,run=128,share=0.1)", Basis::kPlain},
    {"GearOfPrompt", "fdc(rate=0.3)+gear(bits=2,run=prompt,share=0.2)", Basis::kPlain},
    {"Int8", "int8(sink=0)"},
    {"Kvquant", "kvquant(bits=3,run=64,sink=2)"},
    {"KvquantLowrank", "fdc(rate=0.3)+kvquant(outliers=0.1)+lowrank", Basis::kPlain},
    {"WindowGear", "window(size=90)+gear(bits=4,run=64)"},
    {"WindowInt8", "window(size=30)+int8(run=64)"},
    {"Lathe", "lathe(ratio=4,open=8,run=64)", Basis::kSplit},
    {"LatheOpen16", "lathe(ratio=4,run=64,open=16,sink=0)", Basis::kSplit},
    {"LatheLowrank", "lathe(ratio=4,open=8,run=128)+lowrank", Basis::kSplit},
    {"LatheKeysBefore", "lathe(ratio=4,open=8,keys=before,run=64)", Basis::kSplitLatents},
    {"SvdOnline", "svd-online"},
    {"ZackOnline", "zack(online=on)", Basis::kOnline},
    {"Palu", "palu(group=2)", Basis::kSharedLatents},
    {"PaluToken", "palu(group=2)+token(bits=4,hadamard=on,run=64)", Basis::kSharedLatents},
    {"PaluTova", "palu(group=2)+tova(budget=40)", Basis::kSharedLatents},
    {"H2o", "h2o(keep=0.4)"},
    {"H2oExact", "fdc(rate=0.3)+h2o(keep=0.3,score=exact)+gear(bits=4)", Basis::kPlain},
    {"H2oGear", "h2o(keep=0.3)+gear(bits=4)"},
    {"Keyformer", "fdc(rate=0.3)+keyformer(keep=0.3,interval=4)", Basis::kPlain},
    {"Tova", "tova(budget=40,sink=0)"},
    {"TovaKivi", "tova(budget=80,sink=0)+kivi(bits=2)"},
    {"Snapkv", "snapkv(budget=50)"},
    {"SnapkvExact", "fdc(rate=0.3)+snapkv(budget=50,score=exact,sink=0)", Basis::kPlain},
    {"Window", "window(size=30)"},
    {"Dmc", "dmc"},
    {"BasisDmc", "fdc(rate=0.3)+dmc(window=3,sink=0)", Basis::kPlain},
    {"Pool", "pool(n=5,sink=2)"},
    {"PoolKivi", "pool(n=2)+kivi(bits=2,run=64)"},
    {"DmcKivi", "dmc(sink=0)+kivi(bits=2)"},
    {"DmcGear", "fdc(rate=0.3)+dmc+gear(bits=2,share=0.2)", Basis::kPlain},
};

// Tokens one by one and in larger pieces.
std::string Feed(Model* model, SequenceCache* cache, std::span<const int32_t> ids, size_t piece) {
  while (!ids.empty()) {
    const size_t n =
        std::min({ids.size(), piece, static_cast<size_t>(std::max<int64_t>(1, cache->max_step()))});
    EXPECT_TRUE(cache->Extend(static_cast<int>(n)).ok());
    const SequenceStep step = {cache, ids.first(n), SequenceStep::Logits::kLast};
    const Status status = model->Forward({&step, 1});
    EXPECT_TRUE(status.ok()) << status;
    ids = ids.subspan(n);
  }
  const auto logits = std::as_bytes(model->logits(0));
  return {reinterpret_cast<const char*>(logits.data()), logits.size()};
}

std::vector<int32_t> RandomTokens(int n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  return ids;
}

class CopiedSequence : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto spec = Spec::Parse(GetParam().spec);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const ModelBasis basis = DrawBasis(GetParam().basis);
    auto weights =
        ModelWeights::Load(MergingConfig(), DType::kBf16, MakeRandomSource(3), &threads_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights),
                             PartsOf(*spec, GetParam().basis == Basis::kNone ? nullptr : &basis),
                             &threads_, SelectIsa().value());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  std::unique_ptr<SequenceCache> Read(BlockPool* pool, int n_prompt) {
    auto cache = std::make_unique<SequenceCache>(&model_->layout(), pool);
    cache->set_n_prompt(n_prompt, 50);
    Feed(model_.get(), cache.get(), RandomTokens(n_prompt, 1), 512);
    return cache;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

constexpr int kPromptLengths[] = {1, 68, 280};

// Three sequences that read the same: one that is never copied, one that is, and the copy; and then
// a copy of the copy, which stays when all others are gone.
TEST_P(CopiedSequence, GoesOnWithTheSameBitsAndLeavesTheOriginalAlone) {
  for (const int n_prompt : kPromptLengths) {
    SCOPED_TRACE(testing::Message() << n_prompt);
    BlockPool pool(kBudgetBytes), other_pool(kBudgetBytes);
    const auto alone = Read(&other_pool, n_prompt);
    auto original = Read(&pool, n_prompt);
    auto copied = original->Copy();
    ASSERT_TRUE(copied.ok()) << copied.status();
    std::unique_ptr<SequenceCache> copy = *std::move(copied);
    EXPECT_EQ(copy->bytes().total(), original->bytes().total());
    EXPECT_EQ(pool.usage().used_bytes, 2 * original->bytes().total());
    // What the original reads in between is other than what the copy reads.
    Feed(model_.get(), original.get(), RandomTokens(40, 7), 40);
    for (const int32_t id : RandomTokens(70, 2)) {
      const std::string expected = Feed(model_.get(), alone.get(), {&id, 1}, 1);
      ASSERT_EQ(Feed(model_.get(), copy.get(), {&id, 1}, 1), expected) << copy->n_tokens();
      ASSERT_EQ(copy->bytes().total(), alone->bytes().total()) << copy->n_tokens();
    }
    original.reset();
    EXPECT_EQ(pool.usage().used_bytes, copy->bytes().total());
    auto second = copy->Copy();
    ASSERT_TRUE(second.ok()) << second.status();
    copy.reset();
    const std::vector<int32_t> more = RandomTokens(90, 3);
    const std::string expected = Feed(model_.get(), alone.get(), more, 32);
    EXPECT_EQ(Feed(model_.get(), second->get(), more, 32), expected);
    EXPECT_EQ((*second)->bytes().total(), alone->bytes().total());
    second->reset();
    EXPECT_EQ(pool.usage().used_bytes, 0);
  }
}

TEST_P(CopiedSequence, TheOriginalGoesOnAsIfNeverCopied) {
  for (const int n_prompt : kPromptLengths) {
    SCOPED_TRACE(testing::Message() << n_prompt);
    BlockPool pool(kBudgetBytes), other_pool(kBudgetBytes);
    const auto alone = Read(&other_pool, n_prompt), original = Read(&pool, n_prompt);
    {
      auto copy = original->Copy();
      ASSERT_TRUE(copy.ok()) << copy.status();
      Feed(model_.get(), copy->get(), RandomTokens(100, 7), 9);
    }
    EXPECT_EQ(pool.usage().used_bytes, original->bytes().total());
    const std::vector<int32_t> more = RandomTokens(120, 3);
    const std::string expected = Feed(model_.get(), alone.get(), more, 13);
    EXPECT_EQ(Feed(model_.get(), original.get(), more, 13), expected);
    EXPECT_EQ(original->bytes().total(), alone->bytes().total());
  }
}

TEST_P(CopiedSequence, TakesNothingWhereTheBudgetDoesNotHoldIt) {
  BlockPool pool(kBudgetBytes);
  const auto original = Read(&pool, 210);
  Feed(model_.get(), original.get(), RandomTokens(5, 2), 1);
  const int64_t n_bytes = original->bytes().total();
  ASSERT_EQ(pool.usage().used_bytes, n_bytes);
  for (int64_t percent = 0; percent <= 100; percent += 4) {
    const int64_t room = percent == 100 ? n_bytes - 64 : n_bytes * percent / 100;
    ASSERT_TRUE(pool.SetAside(kBudgetBytes - n_bytes - room));
    const auto copy = original->Copy();
    EXPECT_EQ(copy.status().code(), StatusCode::kResourceExhausted) << room;
    EXPECT_EQ(pool.usage().used_bytes, n_bytes) << room;
    pool.ReturnAside(kBudgetBytes - n_bytes - room);
  }
  ASSERT_TRUE(pool.SetAside(kBudgetBytes - 2 * n_bytes));
  EXPECT_TRUE(original->Copy().ok());
  pool.ReturnAside(kBudgetBytes - 2 * n_bytes);
}

INSTANTIATE_TEST_SUITE_P(Specs, CopiedSequence, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SequenceCacheCopy, OfAnEmptySequenceIsEmpty) {
  const CacheLayout layout = {2, 2, 32, 4, std::vector<BlockShape>(4, BlockShape{16, 16})};
  BlockPool pool(kBudgetBytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(7, 3);
  const auto copy = cache.Copy();
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ((*copy)->n_tokens(), 0);
  EXPECT_EQ((*copy)->n_prompt(), 7);
  EXPECT_EQ((*copy)->n_generated(), 3);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

}  // namespace
}  // namespace kvlathe
