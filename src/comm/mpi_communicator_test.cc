// Groups that a real mpirun starts (rank_main.cc), all on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"

namespace kvlathe {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct GroupRun {
  int exit_code = 0;
  std::string output;   // standard output and errors of all ranks
  double ended_at = 0;  // of std::chrono::steady_clock, which all processes of a machine share
};

GroupRun RunShell(const std::string& command) {
  GroupRun run;
  std::FILE* pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) return {.exit_code = -1, .output = "no pipe"};
  std::array<char, 4096> piece;
  for (size_t n; (n = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;) {
    run.output.append(piece.data(), n);
  }
  const int status = ::pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  run.ended_at = now.count();
  return run;
}

// More ranks than processors, as root too, and without a network. btl: how ranks reach each other.
GroupRun RunGroup(int n_ranks, const std::string& what, const std::string& btl = "self,vader,tcp") {
  return RunShell(fmt::format(
      "timeout -k 5 90 mpirun --allow-run-as-root --oversubscribe --bind-to none "
      "--mca plm isolated --mca btl {} --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo "
      "-n {} {} {}",
      btl, n_ranks, KVLATHE_COMM_RANK, what));
}

std::string HostName() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

double SecondsSinceFailure(const GroupRun& run) {
  const std::string mark = "rank 1 fails at ";
  const size_t place = run.output.find(mark);
  return place == std::string::npos
             ? -1
             : run.ended_at - std::strtod(run.output.c_str() + place + mark.size(), nullptr);
}

class MpiGroupTest : public testing::TestWithParam<int> {};

TEST_P(MpiGroupTest, DoesWhatThreadsDo) {
  const GroupRun run = RunGroup(GetParam(), "cases");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_THAT(run.output, HasSubstr(fmt::format("rank {} of {} is done", rank, GetParam())));
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, MpiGroupTest, testing::Values(1, 2, 4));

TEST(MpiGroup, OverTcpAloneDoesTheSame) {
  const GroupRun run = RunGroup(3, "cases", "self,tcp");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("rank 2 of 3 is done"));
}

TEST(MpiGroup, WithoutMpirunAProgramIsAGroupOfOne) {
  const GroupRun run = RunShell(fmt::format("{} cases", KVLATHE_COMM_RANK));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.output, "rank 0 of 1 is done\n");
}

TEST(MpiGroup, SleepsWhileItWaits) {
  const GroupRun run = RunGroup(4, "idle");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string mark = fmt::format("rank {} used ", rank);
    const size_t place = run.output.find(mark);
    ASSERT_NE(place, std::string::npos) << run.output;
    EXPECT_LT(std::strtod(run.output.c_str() + place + mark.size(), nullptr), 5.0) << run.output;
  }
}

TEST(MpiGroup, AStoppedRankEndsIt) {
  const GroupRun run = RunGroup(2, "stop");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output,
              HasSubstr(fmt::format("rank 1 on {} did not answer within 3.5 s", HostName())));
  EXPECT_THAT(run.output, Not(HasSubstr("rank 0 on")));
  EXPECT_GT(SecondsSinceFailure(run), 0) << run.output;
  EXPECT_LT(SecondsSinceFailure(run), 5) << run.output;
}

TEST(MpiGroup, RanksThatWaitForeverEndWithIt) {
  const GroupRun run = RunGroup(3, "forever");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output,
              HasSubstr(fmt::format("rank 1 on {} did not answer within 3.5 s", HostName())));
  EXPECT_GT(SecondsSinceFailure(run), 0) << run.output;
  EXPECT_LT(SecondsSinceFailure(run), 5) << run.output;
}

TEST(MpiGroup, AKilledRankEndsIt) {
  const GroupRun run = RunGroup(4, "kill");
  EXPECT_NE(run.exit_code, 0);
  // mpirun sees it first, and says so.
  EXPECT_THAT(run.output, ContainsRegex("process rank 1 .*on node " + HostName()));
  EXPECT_GT(SecondsSinceFailure(run), 0) << run.output;
  EXPECT_LT(SecondsSinceFailure(run), 5) << run.output;
}

}  // namespace
}  // namespace kvlathe
