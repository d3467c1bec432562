#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/communicator_cases.h"
#include "comm/thread_communicator.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::Not;

// Each rank on a thread of its own; a communicator lives until its rank is done.
std::vector<Status> OnThreads(int n_ranks, const std::function<Status(Communicator&)>& rank_work) {
  auto group = MakeThreadGroup(n_ranks, {});
  std::vector<Status> statuses(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = rank_work(*group[rank]);
      group[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

class ThreadGroupTest : public testing::TestWithParam<int> {
 protected:
  void ExpectOk(const std::function<Status(Communicator&)>& rank_work) {
    for (const Status& status : OnThreads(GetParam(), [&](Communicator& all) {
           all.set_timeout(std::chrono::seconds(60));  // sanitizers on a busy machine
           return rank_work(all);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

TEST_P(ThreadGroupTest, SumsInTheOrderOfRanks) { ExpectOk(CheckAllReduce); }
TEST_P(ThreadGroupTest, GathersAndBroadcasts) { ExpectOk(CheckGatherAndBroadcast); }
TEST_P(ThreadGroupTest, CarriesMessagesInOrder) { ExpectOk(CheckMessages); }
TEST_P(ThreadGroupTest, IsSplit) { ExpectOk(CheckSplit); }
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroupTest, testing::Values(1, 2, 3, 4));

TEST(CommunicatorFailure, NamesTheRankThatDoesNotAnswer) {
  auto group = MakeThreadGroup(3, {"here", "node-b", "node-c"});
  for (auto& rank : group) rank->set_timeout(std::chrono::milliseconds(300));
  std::vector<Status> statuses(3);
  std::vector<std::thread> threads;
  const Stopwatch watch;
  for (const size_t rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      float value = 1;
      statuses[rank] = group[rank]->AllReduce({&value, 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(watch.Seconds(), 0.3);
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), StatusCode::kUnavailable);
    EXPECT_THAT(MessageOf(statuses[rank]),
                HasSubstr("rank 1 on node-b did not answer within 0.3 s"));
    EXPECT_THAT(MessageOf(statuses[rank]), Not(HasSubstr("rank 2")));
  }
  // The group stays broken, without another wait.
  group[0]->set_timeout(std::chrono::hours(1));
  EXPECT_EQ(group[0]->Send(2, {}), statuses[0]);
  EXPECT_EQ(group[0]->ReceiveMessage(2, /*wait_forever=*/true).status(), statuses[0]);
}

TEST(CommunicatorFailure, NamesAllThatDoNotAnswerByTheirRanksInTheGroup) {
  const std::vector<Status> statuses = OnThreads(4, [](Communicator& all) -> Status {
    all.set_timeout(std::chrono::milliseconds(200));
    const std::vector<int> ranks = {3, 2, 1};
    const std::vector<int> alone = {0};
    KVL_ASSIGN_OR_RETURN(const auto part, all.Split(all.rank() == 0 ? alone : ranks));
    if (all.rank() != 3) {
      // Neither answers; both outlive what the other one waits.
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      return OkStatus();
    }
    std::vector<std::byte> mine(1);
    std::vector<std::byte> gathered(3);
    return part->AllGather(mine, gathered);
  });
  EXPECT_THAT(MessageOf(statuses[3]),
              HasSubstr("rank 1 on thread-1 and rank 2 on thread-2 did not answer within 0.2 s"));
}

TEST(CommunicatorFailure, SaysAtOnceThatARankHasLeft) {
  const std::vector<Status> statuses = OnThreads(2, [](Communicator& all) {
    const std::vector<std::byte> last_word(7);
    if (all.rank() == 1) return all.Send(0, last_word);
    std::vector<std::byte> received(7);
    KVL_RETURN_IF_ERROR(all.Receive(1, received));
    return all.ReceiveMessage(1, /*wait_forever=*/true).status();
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_EQ(MessageOf(statuses[0]), "rank 1 on thread-1 has left the group");
}

TEST(CommunicatorFailure, SizesThatDifferAreAnError) {
  const std::vector<Status> statuses = OnThreads(2, [](Communicator& all) {
    std::vector<std::byte> bytes(all.rank() == 0 ? 8 : 9);
    return all.rank() == 0 ? all.Send(1, bytes) : all.Receive(0, bytes);
  });
  EXPECT_THAT(MessageOf(statuses[1]),
              HasSubstr("rank 0 on thread-0 sent 8 bytes where 9 are received"));
}

TEST(CommunicatorFailure, AMessageThatIsTooLongIsNotSent) {
  auto group = MakeThreadGroup(2, {});
  const std::byte* nowhere = nullptr;
  const Status status =
      group[0]->SendMessage(1, std::span(nowhere, Communicator::kMaxMessageBytes + 1));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

TEST(CommunicatorWait, ForeverOutlastsTheLimit) {
  const std::vector<Status> statuses = OnThreads(2, [](Communicator& all) {
    all.set_timeout(std::chrono::milliseconds(100));
    if (all.rank() == 0) return all.ReceiveMessage(1, /*wait_forever=*/true).status();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return all.SendMessage(0, {});
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

}  // namespace
}  // namespace kvlathe
