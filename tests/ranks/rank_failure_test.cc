// What fails on one rank fails alone where it can, and otherwise ends the group with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "engine/engine.h"
#include "model/overflowing_source.h"
#include "model/small_config.h"
#include "thread_ranks.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;
using testing::RankParts;
using testing::SharedModel;
using testing::ThreadRanks;

constexpr int32_t kSpoilingToken = 77;
constexpr int64_t kAmpleBytes = int64_t{32} << 20;

// The values of one token are infinite, in one KV head of the first layer.
SharedModel SpoiledIn(int kv_head_idx) {
  const ModelConfig config = SmallConfig();
  return {.config = config, .open = [=] {
            return std::make_unique<OverflowingSource>(3, kSpoilingToken,
                                                       int64_t{kv_head_idx} * config.head_dim);
          }};
}

std::vector<Request> SoundRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    Random random(i);
    Request& r = requests.emplace_back();
    for (int t = 0; t < 90 + 13 * i; ++t) {
      r.prompt.push_back(static_cast<int32_t>(random.Below(kSpoilingToken)));
    }
    r.max_tokens = 20;
    r.sampling.logit_bias[kSpoilingToken] = -100;
  }
  return requests;
}

std::vector<RequestOutcome> RunTogether(Model* model, Device* memory,
                                        const std::vector<Request>& requests) {
  BlockPool pool(kAmpleBytes, memory);
  std::vector<RequestOutcome> outcomes(requests.size());
  {
    Engine engine({model}, &pool, {.max_batch_tokens = 100});
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Submit(requests[i], nullptr,
                                    [&, i](auto, const RequestOutcome& o) { outcomes[i] = o; });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    engine.RunUntilIdle().IgnoreError();
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
  return outcomes;
}

TEST(RankFailure, ASequenceWhoseRowsAreNotFiniteOnOneRankFailsAlone) {
  for (const RankGrid& grid : {RankGrid{2, 1}, RankGrid{1, 2}, RankGrid{2, 2}}) {
    for (const int kv_head_idx : {0, 1}) {
      const SharedModel shared = SpoiledIn(kv_head_idx);
      const auto whole = RankParts::Load(shared, grid, nullptr);
      ASSERT_TRUE(whole.ok()) << whole.status();
      ThreadRanks ranks(shared, grid);
      for (const char* kv : {"none", "kivi(bits=4,group=64)"}) {
        SCOPED_TRACE(kv);
        const auto alone = (*whole)->MakeModel(kv);
        ASSERT_TRUE(alone.ok()) << alone.status();
        std::vector<Request> requests = SoundRequests();
        const auto expected = RunTogether(alone->get(), &(*whole)->memory(), requests);
        requests.push_back(requests[2]);
        requests.back().prompt[50] = kSpoilingToken;
        const auto model = ranks.MakeModel(kv);
        ASSERT_TRUE(model.ok()) << model.status();
        const auto outcomes = RunTogether(model->get(), &ranks.memory(), requests);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
          EXPECT_EQ(outcomes[i].tokens, expected[i].tokens);
        }
        EXPECT_EQ(outcomes.back().finish_reason, FinishReason::kFailed);
        EXPECT_EQ(outcomes.back().status.code(), StatusCode::kDataLoss) << outcomes.back().status;
      }
      EXPECT_EQ(ranks.CountMirrored(), 0);
    }
  }
}

// A shard that cannot be made is an error of the model, and the group goes on.
TEST(RankFailure, AModelThatARankCannotMakeNamesTheRank) {
  ThreadRanks::Options options;
  options.make_shard = [](int rank, RankParts* parts,
                          const std::string& kv) -> StatusOr<std::unique_ptr<Model>> {
    if (rank == 1 && kv == "int8") {
      return Error(StatusCode::kResourceExhausted, "no memory for the maps");
    }
    return parts->MakeModel(kv);
  };
  ThreadRanks ranks(SpoiledIn(0), {2, 2}, options);
  const Status refused = ranks.MakeModel("int8").status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(MessageOf(refused), "rank 1 on thread-1: no memory for the maps");
  // What rank 0 cannot make, nobody keeps.
  EXPECT_EQ(ranks.MakeModel("kcvt").status().code(), StatusCode::kInvalidArgument);
  const auto model = ranks.MakeModel("none");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto outcomes = RunTogether(model->get(), &ranks.memory(), SoundRequests());
  for (const RequestOutcome& o : outcomes) EXPECT_TRUE(o.status.ok()) << o.status;
  for (const Status& ended : ranks.End()) EXPECT_TRUE(ended.ok()) << ended;
}

TEST(RankFailure, ARankThatDoesNotAnswerEndsTheStepWithItsName) {
  constexpr std::chrono::seconds kPatience(1);
  for (const RankGrid& grid : {RankGrid{2, 1}, RankGrid{1, 2}}) {
    ThreadRanks::Options options;
    options.patience.step = kPatience;
    ThreadRanks ranks(SpoiledIn(0), grid, options);
    auto model = ranks.MakeModel("none");
    ASSERT_TRUE(model.ok()) << model.status();
    {
      BlockPool pool(kAmpleBytes, &ranks.memory());
      SequenceCache cache(&(*model)->layout(), &pool);
      const std::vector<int32_t> ids = {1, 2, 3};
      const auto step_once = [&] {
        EXPECT_TRUE(cache.Extend(3).ok());
        const SequenceStep step = {&cache, ids};
        return (*model)->Forward({&step, 1});
      };
      EXPECT_TRUE(step_once().ok());
      ranks.Halt(1);
      const Stopwatch watch;
      const Status failed = step_once();
      EXPECT_LT(watch.Seconds(), 5);
      EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
      EXPECT_THAT(MessageOf(failed), HasSubstr("rank 1 on thread-1 did not answer within 1"));
      // The group is of no use any more, and says so at once.
      EXPECT_EQ(ranks.leader().Ask().code(), StatusCode::kUnavailable);
      EXPECT_EQ(step_once().code(), StatusCode::kUnavailable);
    }
    model->reset();
    EXPECT_FALSE(ranks.End()[1].ok());
  }
}

}  // namespace
}  // namespace kvlathe
