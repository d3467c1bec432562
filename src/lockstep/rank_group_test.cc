#include "lockstep/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"
#include "lockstep/lock_step.h"

namespace kvlathe {
namespace {

// What each of the ranks says, on a thread of its own.
std::vector<Status> AgreeOnThreads(const std::vector<RankCard>& cards) {
  auto group = MakeThreadGroup(static_cast<int>(cards.size()), {"here", "node-b", "node-c"});
  std::vector<Status> statuses(cards.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < cards.size(); ++r) {
    group[r]->set_timeout(std::chrono::seconds(60));  // sanitizers on a busy machine
    threads.emplace_back([&, r] { statuses[r] = Agree(group[r].get(), cards[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses;
}

RankCard CardSaying(const std::string& build, const std::string& model,
                    const std::string& command) {
  return {OkStatus(), "build " + build + "\nmodel " + model + "\ncommand " + command + "\n"};
}

TEST(Agree, RanksOfOneModelDo) {
  const RankCard card = CardSaying("1", "a", "run --tp 3");
  EXPECT_TRUE(AgreeOnThreads({card, card, card})[0].ok());
}

TEST(Agree, NamesTheRankThatIsOtherwiseAndHow) {
  const RankCard card = CardSaying("1", "a", "run --tp 3");
  const auto refusal = [&](const RankCard& other) {
    const Status status = AgreeOnThreads({card, card, other})[0];
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return MessageOf(status);
  };
  EXPECT_EQ(refusal(CardSaying("1", "b", "run --tp 3")),
            "rank 2 on node-c has another model b than rank 0 on here (model a); all ranks must "
            "have the same build, model and options");
  EXPECT_EQ(refusal(CardSaying("1", "a", "run --tp 3 --kv int8")),
            "rank 2 on node-c has another command run --tp 3 --kv int8 than rank 0 on here "
            "(command run --tp 3); all ranks must have the same build, model and options");
  EXPECT_EQ(refusal(CardSaying("2", "a", "run --tp 3")),
            "rank 2 on node-c has another build 2 than rank 0 on here (build 1); all ranks must "
            "have the same build, model and options");
}

TEST(Agree, SaysWhatARankCouldNotOpen) {
  const RankCard card = CardSaying("1", "a", "run");
  const RankCard failed = {Error(StatusCode::kNotFound, "m/config.json: no such file"), ""};
  const Status one = AgreeOnThreads({card, failed, card})[0];
  EXPECT_EQ(one.code(), StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(one), "rank 1 on node-b: m/config.json: no such file");
  // What is so everywhere is nobody's.
  EXPECT_EQ(MessageOf(AgreeOnThreads({failed, failed, failed})[0]), "m/config.json: no such file");
}

TEST(MakeRankGroup, RefusesAnotherNumberOfRanksThanTheGridHas) {
  const auto refused = MakeRankGroup(std::move(MakeThreadGroup(3)[0]), {2, 2}, {});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(refused.status()),
            "--tp 2 and --pp 2 need 4 ranks, and there are 3; start them with mpirun -n 4 kvlathe "
            "...");
}

TEST(LockStep, AsksAllAndNamesWhoDoesNotAnswer) {
  auto group = MakeThreadGroup(3, {"here", "node-b", "node-c"});
  std::thread answers([&] {
    const auto order = group[1]->ReceiveMessage(0);
    EXPECT_TRUE(order.ok()) << order.status();
    EXPECT_TRUE(group[1]->SendMessage(0, Encode(RankAnswer())).ok());
  });
  LockStep leader(group[0].get(), std::chrono::milliseconds(500), std::chrono::seconds(60));
  const Status asked = leader.Ask();
  answers.join();
  EXPECT_EQ(asked.code(), StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(asked),
              ::testing::HasSubstr("rank 2 on node-c did not answer within 0.35 s"));
  leader.Dismiss();
}

TEST(LockStep, AnswersThatCannotBeReadAreAnError) {
  auto group = MakeThreadGroup(2);
  std::thread answers([&] {
    EXPECT_TRUE(group[1]->ReceiveMessage(0).ok());
    EXPECT_TRUE(group[1]->SendMessage(0, std::vector<std::byte>(3)).ok());
  });
  LockStep leader(group[0].get(), std::chrono::seconds(60), std::chrono::seconds(60));
  const Status asked = leader.Ask();
  answers.join();
  EXPECT_EQ(asked.code(), StatusCode::kDataLoss) << asked;
  leader.Dismiss();
}

}  // namespace
}  // namespace kvlathe
