// An engine on rank 0 answers as one on a machine that has the whole model, whatever it does to
// caches; and when it is gone, no rank holds anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "calibrated_ranks.h"
#include "engine/engine.h"
#include "greedy_batch.h"
#include "kv/capacity.h"

namespace kvlathe {
namespace {

using testing::CalibratedRanks;
using testing::RandomModelShape;
using testing::ShapeOfHeads;

constexpr int64_t kRoomForAll = int64_t{64} << 20;
constexpr int kTokensOfStep = 64;

std::vector<Request> RequestsOf(const std::vector<int>& lengths, int max_tokens, int vocab_size) {
  std::vector<Request> requests;
  for (testing::PromptToRead& prompt :
       testing::RandomPrompts(lengths, std::vector<int>(lengths.size(), 1), vocab_size)) {
    requests.push_back({.prompt = std::move(prompt.ids), .max_tokens = max_tokens});
  }
  return requests;
}

// The models of an engine's levels, on one machine or on rank 0.
struct EngineLevels {
  Device* memory = nullptr;
  std::vector<std::unique_ptr<Model>> models;

  // The most that a request needs alone there.
  int64_t MostAlone(const std::vector<Request>& requests) const {
    int64_t most = 0;
    for (const Request& r : requests) {
      const int n_prompt = static_cast<int>(r.prompt.size());
      most = std::max(most, PeakSequenceBytes(models[r.level]->layout(), n_prompt + r.max_tokens,
                                              kTokensOfStep, n_prompt));
    }
    return most;
  }

  // One after the other, or all at once.
  std::vector<RequestOutcome> Run(const std::vector<Request>& requests, int64_t budget,
                                  EngineOptions options, bool is_one_by_one = false) const {
    options.max_batch_tokens = kTokensOfStep;
    BlockPool pool(budget, memory);
    std::vector<RequestOutcome> outcomes(requests.size());
    {
      std::vector<Model*> levels;
      for (const auto& model : models) levels.push_back(model.get());
      Engine engine(levels, &pool, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto id = engine.Submit(requests[i], nullptr,
                                      [&, i](auto, const RequestOutcome& o) { outcomes[i] = o; });
        EXPECT_TRUE(id.ok()) << id.status();
        if (is_one_by_one) {
          EXPECT_TRUE(engine.RunUntilIdle().ok());
        }
      }
      EXPECT_TRUE(engine.RunUntilIdle().ok());
    }
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return outcomes;
  }
};

class RankEngine : public ::testing::TestWithParam<RankGrid> {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<CalibratedRanks>(ShapeOfHeads(4), RankGrid{2, 1});
    staged_ = std::make_unique<CalibratedRanks>(ShapeOfHeads(4), RankGrid{2, 2});
  }
  static void TearDownTestSuite() {
    shared_.reset();
    staged_.reset();
  }

  CalibratedRanks& Shared() { return GetParam().n_stages == 1 ? *shared_ : *staged_; }
  int VocabSize() { return Shared().config().vocab_size; }

  EngineLevels OnRanks(const std::vector<std::string>& specs) {
    EngineLevels levels = {.memory = &Shared().ranks().memory()};
    for (const std::string& kv : specs) {
      auto model = Shared().ranks().MakeModel(kv);
      EXPECT_TRUE(model.ok()) << model.status();
      levels.models.push_back(*std::move(model));
    }
    return levels;
  }
  EngineLevels OnOneMachine(const std::vector<std::string>& specs) {
    EngineLevels levels = {.memory = &Shared().whole().memory()};
    for (const std::string& kv : specs) {
      auto model = Shared().whole().MakeModel(kv);
      EXPECT_TRUE(model.ok()) << model.status();
      levels.models.push_back(*std::move(model));
    }
    return levels;
  }

  static void ExpectSameTokens(const std::vector<RequestOutcome>& ranks,
                               const std::vector<RequestOutcome>& whole) {
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(ranks[i].status.ok()) << ranks[i].status;
      EXPECT_FALSE(whole[i].tokens.empty());
      EXPECT_EQ(ranks[i].tokens, whole[i].tokens) << "request " << i;
      EXPECT_EQ(ranks[i].kv_bytes.total(), whole[i].kv_bytes.total()) << "request " << i;
    }
  }
  void ExpectNothingIsLeft() { EXPECT_EQ(Shared().ranks().CountMirrored(), 0); }

 private:
  static inline std::unique_ptr<CalibratedRanks> shared_, staged_;
};

// Guesses by chance and, where the answer is known, half of the time what it is.
class HalfRightDrafter : public Drafter {
 public:
  HalfRightDrafter(std::vector<int32_t> answer, int vocab_size)
      : answer_(std::move(answer)), vocab_size_(vocab_size) {}

  std::vector<int32_t> Propose(std::span<const int32_t> tokens, int64_t n_given,
                               int n_most) override {
    std::vector<int32_t> draft(std::min(n_most, 6));
    for (size_t i = 0; i < draft.size(); ++i) {
      const size_t at = tokens.size() - n_given + i;
      const bool is_right = i < random_.Below(7) && at < answer_.size();
      draft[i] = is_right ? answer_[at] : static_cast<int32_t>(random_.Below(vocab_size_));
    }
    return draft;
  }

 private:
  std::vector<int32_t> answer_;
  int vocab_size_;
  Random random_{11};
};

// What was refused goes on all ranks.
TEST_P(RankEngine, ChecksDrafts) {
  const std::vector<Request> requests = RequestsOf({100, 20, 70}, 90, VocabSize());
  for (const char* kv : {"none", "kivi(bits=4,group=64)"}) {
    SCOPED_TRACE(kv);
    const std::vector<RequestOutcome> expected = OnOneMachine({kv}).Run(requests, kRoomForAll, {});
    std::vector<Request> drafted = requests;
    for (size_t i = 0; i < drafted.size(); ++i) {
      drafted[i].drafter = std::make_shared<HalfRightDrafter>(expected[i].tokens, VocabSize());
    }
    const std::vector<RequestOutcome> outcomes = OnRanks({kv}).Run(drafted, kRoomForAll, {});
    ExpectSameTokens(outcomes, expected);
    for (const RequestOutcome& o : outcomes) {
      EXPECT_GT(o.n_accepted_tokens, 10);
      EXPECT_LT(o.n_accepted_tokens, o.n_drafted_tokens - 10);
    }
  }
  ExpectNothingIsLeft();
}

TEST_P(RankEngine, AnswersManyAtOnceAndThroughPreemption) {
  const std::vector<Request> requests = RequestsOf({150, 20, 90, 120}, 130, VocabSize());
  for (const char* kv : {"none", "kivi(bits=4,group=64)", "h2o(keep=0.5)"}) {
    SCOPED_TRACE(kv);
    const std::vector<RequestOutcome> expected = OnOneMachine({kv}).Run(requests, kRoomForAll, {});
    const EngineLevels levels = OnRanks({kv});
    ExpectSameTokens(levels.Run(requests, kRoomForAll, {}), expected);
    const int64_t tight = levels.MostAlone(requests) * 3 / 2;
    const std::vector<RequestOutcome> pressed = levels.Run(requests, tight, {});
    ExpectSameTokens(pressed, expected);
    if (std::string(kv) != "none") continue;
    int n_preemptions = 0;
    for (const RequestOutcome& o : pressed) n_preemptions += o.n_preemptions;
    EXPECT_GT(n_preemptions, 0);
  }
  ExpectNothingIsLeft();
}

TEST_P(RankEngine, BeginsBehindStoredPrefixes) {
  std::vector<Request> requests = RequestsOf({200, 30, 60, 90, 10}, 20, VocabSize());
  for (size_t i = 1; i < requests.size(); ++i) {
    const std::vector<int32_t>& first = requests[0].prompt;
    const auto n_shared = static_cast<int64_t>(200 - 30 * i);
    requests[i].prompt.insert(requests[i].prompt.begin(), first.begin(), first.begin() + n_shared);
  }
  for (const char* kv : {"none", "kivi(bits=2,run=64)", "fdc(rate=0.5)+kivi(bits=4,run=64)"}) {
    SCOPED_TRACE(kv);
    const std::vector<RequestOutcome> expected = OnOneMachine({kv}).Run(requests, kRoomForAll, {});
    const EngineLevels levels = OnRanks({kv});
    const int64_t most = levels.MostAlone(requests);
    for (const int64_t prefix_bytes : {kRoomForAll, most}) {
      const std::vector<RequestOutcome> outcomes =
          levels.Run(requests, prefix_bytes == most ? 2 * most : kRoomForAll,
                     {.prefix_bytes = prefix_bytes}, /*is_one_by_one=*/true);
      int n_stored = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(outcomes[i].tokens, expected[i].tokens) << "request " << i;
        n_stored += outcomes[i].n_prefix_tokens;
      }
      EXPECT_GT(n_stored, 0);
    }
  }
  ExpectNothingIsLeft();
}

TEST_P(RankEngine, HasLevelsAndRates) {
  std::vector<Request> requests = RequestsOf({150, 20, 90, 130}, 30, VocabSize());
  for (size_t i = 0; i < requests.size(); ++i) requests[i].level = static_cast<int>(i % 2);
  const std::vector<std::string> levels = {"none", "kivi(bits=4,group=64)"};
  ExpectSameTokens(OnRanks(levels).Run(requests, kRoomForAll, {}),
                   OnOneMachine(levels).Run(requests, kRoomForAll, {}));
  for (Request& r : requests) r.level = 0;
  requests[0].rate = 0.5;
  requests[1].rate = 0.1;
  requests[3].rate = 0.5;
  for (const char* kv : {"lathe(rate=0.25,resident=full)", "fdc(rate=0.3,resident=full)"}) {
    SCOPED_TRACE(kv);
    ExpectSameTokens(OnRanks({kv}).Run(requests, kRoomForAll, {}),
                     OnOneMachine({kv}).Run(requests, kRoomForAll, {}));
  }
  ExpectNothingIsLeft();
}

constexpr const char* kPressedCache = "lathe(ratio=4,open=8,under_pressure=8,run=64)";

TEST_P(RankEngine, PressesRunsBeforeItPreempts) {
  const std::vector<Request> requests = RequestsOf({100, 100, 100}, 300, VocabSize());
  {
    const EngineLevels levels = OnRanks({kPressedCache});
    const int64_t tight = levels.MostAlone(requests) * 3 / 2;
    int64_t n_pressed = 0;
    for (const RequestOutcome& o : levels.Run(requests, tight, {})) {
      EXPECT_TRUE(o.status.ok()) << o.status;
      EXPECT_EQ(o.tokens.size(), 300u);
      n_pressed += o.n_pressed_tokens;
    }
    EXPECT_GT(n_pressed, 0);
  }
  ExpectNothingIsLeft();
}

// Of one cache: a run is pressed, it is copied, and both go on as on one machine.
TEST_P(RankEngine, PressesAndCopiesAsOneMachineDoes) {
  const std::vector<int32_t> ids = RequestsOf({230}, 1, VocabSize())[0].prompt;
  struct Traced {
    std::vector<std::vector<float>> logits;
    std::vector<int64_t> n_bytes;
  };
  const auto trace = [&](const EngineLevels& levels, const auto& bytes_of) {
    Model& model = *levels.models[0];
    BlockPool pool(kRoomForAll, levels.memory);
    Traced traced;
    auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool);
    cache->set_n_prompt(200, 30);
    const auto read = [&](SequenceCache* to, size_t begin, size_t end) {
      while (begin < end) {
        const auto n = std::min<int64_t>({static_cast<int64_t>(end - begin), 50, to->max_step()});
        EXPECT_TRUE(to->Extend(static_cast<int>(n)).ok());
        const SequenceStep step = {to, std::span(ids).subspan(begin, n)};
        EXPECT_TRUE(model.Forward({&step, 1}).ok());
        begin += n;
      }
      traced.logits.emplace_back(model.logits(0).begin(), model.logits(0).end());
      traced.n_bytes.push_back(bytes_of(*to));
    };
    read(cache.get(), 0, 210);
    const auto run_idx = cache->RunToPress();
    EXPECT_TRUE(run_idx.has_value());
    if (run_idx.has_value()) {
      EXPECT_TRUE(model.PressRun(cache.get(), *run_idx).ok());
    }
    read(cache.get(), 210, 211);
    auto copy = cache->Copy();
    EXPECT_TRUE(copy.ok()) << copy.status();
    read(copy->get(), 211, 230);
    read(cache.get(), 211, 220);
    cache->Clear();
    cache->set_n_prompt(20);
    read(cache.get(), 0, 30);
    return traced;
  };
  const Traced expected =
      trace(OnOneMachine({kPressedCache}), [](const auto& c) { return c.bytes().total(); });
  const Traced traced = trace(OnRanks({kPressedCache}),
                              [&](const auto& c) { return Shared().ranks().BytesOf(c).total(); });
  EXPECT_EQ(traced.n_bytes, expected.n_bytes);
  EXPECT_LE(testing::LargestKl(expected.logits, traced.logits), 1e-4);
  ExpectNothingIsLeft();
}

INSTANTIATE_TEST_SUITE_P(Grids, RankEngine, ::testing::Values(RankGrid{2, 1}, RankGrid{2, 2}),
                         [](const auto& test) {
                           return test.param.n_stages == 1 ? "TwoRanks" : "TwoRanksInTwoStages";
                         });

// The first stage has a layer with a window and the second one that sees everything, so the second
// holds more, and the budget is that of both.
TEST(RankPools, AreAsFullAsThatOfTheRankWithTheMost) {
  RandomModelShape shape = ShapeOfHeads(2);
  shape.model_type = "gemma3_text";
  shape.n_heads = 2;
  shape.window = 9;
  shape.whole_every = 2;
  shape.query_scalar = 20;
  const std::string directory = testing::FreshDirectory("rank_pools");
  testing::WriteRandomModel(shape, directory, 5);
  testing::ThreadRanks ranks(testing::OfFile(directory), {1, 2});
  std::filesystem::remove_all(directory);
  const auto made = ranks.MakeModel("none");
  ASSERT_TRUE(made.ok()) << made.status();
  Model& model = **made;
  const std::vector<int32_t> ids = RequestsOf({400}, 1, shape.vocab)[0].prompt;
  const auto read = [&](SequenceCache* cache, int64_t n_most) {
    int64_t n_read = 0;
    for (; n_read < n_most; n_read += 40) {
      const Status extended = cache->Extend(40);
      if (!extended.ok()) {
        EXPECT_EQ(extended.code(), StatusCode::kResourceExhausted);
        break;
      }
      const SequenceStep step = {cache, std::span(ids).subspan(n_read, 40)};
      EXPECT_TRUE(model.Forward({&step, 1}).ok());
    }
    return n_read;
  };
  int64_t n_second = 0;
  {
    BlockPool pool(kRoomForAll, &ranks.memory());
    SequenceCache cache(&model.layout(), &pool);
    EXPECT_EQ(read(&cache, 400), 400);
    n_second = ranks.BytesOn(1, cache).total();
    const int64_t n_first = cache.bytes().total();
    EXPECT_GT(n_second, 2 * n_first);
    EXPECT_EQ(pool.usage().used_bytes, n_first);
    EXPECT_EQ(pool.usage().budget_bytes, kRoomForAll - (n_second - n_first));
  }
  {
    // Ranks tell what they hold behind every step: the bound is passed by a step at most.
    BlockPool pool(n_second / 2, &ranks.memory());
    SequenceCache cache(&model.layout(), &pool);
    const int64_t n_read = read(&cache, 400);
    EXPECT_GT(n_read, 100);
    EXPECT_LT(n_read, 300);
  }
  EXPECT_EQ(ranks.CountMirrored(), 0);
}

}  // namespace
}  // namespace kvlathe
