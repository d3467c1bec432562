#include "evaluation/bench/bench_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvlathe {
namespace {

TEST(PlanBenchTest, DrawsWhatTheNamesSay) {
  const std::vector<PlanWorkload> workloads = DrawPlanWorkloads(3);
  ASSERT_EQ(workloads.size(), 7u);
  std::set<int> lengths_of_heads;
  for (const PlanWorkload& workload : workloads) {
    for (const JobSize& job : workload.jobs) {
      EXPECT_GE(job.n_entries, 2048) << workload.name;
      EXPECT_LE(job.n_entries, 131072) << workload.name;
      EXPECT_EQ(job.rank_k % 16, 0);
      EXPECT_EQ(job.first_visible + job.n_tokens, job.n_entries + 1);
      if (workload.name.find("heads of") != std::string::npos) {
        lengths_of_heads.insert(job.n_entries);
      }
    }
  }
  EXPECT_GT(lengths_of_heads.size(), 100u);  // of 128
  EXPECT_EQ(workloads[1].jobs[0].n_entries, workloads[1].jobs[7].n_entries);
  EXPECT_NE(workloads[1].jobs[7].n_entries, workloads[1].jobs[8].n_entries);
}

// The bar of the planner, on draws of its own: no schedule ends before the mean, and balanced ends
// within 5% of it with up to 132 workers.
TEST(PlanBenchTest, BalancedIsWithinFivePercentForUpTo132Workers) {
  const StatusOr<PlanBenchReport> report = RunPlanBench({.n_draws = 4, .seed = 100});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows.size(), 7u * 7u * 5u);
  for (const PlanBenchRow& row : report->rows) {
    EXPECT_GE(row.mean_makespan, 1 - 1e-9) << row.workload;
    EXPECT_LE(row.mean_makespan, row.worst_makespan + 1e-12) << row.workload;
    if (row.schedule != "balanced") continue;
    EXPECT_LE(row.mean_makespan, 1.05) << row.workload << ", " << row.n_workers << " workers";
  }
}

TEST(PlanBenchTest, TheSameSeedGivesTheSameMakespans) {
  const PlanBenchOptions options = {.worker_counts = {2, 132}, .n_draws = 2};
  const auto a = RunPlanBench(options), b = RunPlanBench(options);
  for (size_t i = 0; i < a->rows.size(); ++i) {
    EXPECT_EQ(a->rows[i].worst_makespan, b->rows[i].worst_makespan);
  }
}

TEST(PlanBenchTest, JsonAndTableHaveEveryRow) {
  const auto report = RunPlanBench({.worker_counts = {2}, .n_draws = 1});
  const nlohmann::ordered_json json = ToJson(*report);
  ASSERT_EQ(json["rows"].size(), 35u);
  for (const char* key :
       {"workload", "workers", "schedule", "mean_makespan", "worst_makespan", "plan_us"}) {
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  }
  const std::string table = ToMarkdown(*report);
  EXPECT_EQ(std::ranges::count(table, '\n'), 4 + 7);
}

TEST(PlanBenchTest, ShowsTheSchedulesThatAreAskedFor) {
  const auto all = RunPlanBench({.worker_counts = {8}, .n_draws = 1});
  const auto two =
      RunPlanBench({.worker_counts = {8}, .n_draws = 1, .schedules = {"zack", "balanced"}});
  ASSERT_EQ(two->rows.size(), 14u);
  for (int i = 0; i < 7; ++i) {  // what is not shown is simulated too: the mean is that of all
    EXPECT_EQ(two->rows[2 * i].schedule, "zack");
    EXPECT_EQ(two->rows[2 * i].mean_makespan, all->rows[5 * i + 3].mean_makespan);
    EXPECT_EQ(two->rows[2 * i + 1].mean_makespan, all->rows[5 * i + 4].mean_makespan);
  }
  const std::string table = ToMarkdown(*two);
  EXPECT_THAT(table, testing::HasSubstr("| workers | zack | balanced | planning us"));
  const Status other = RunPlanBench({.schedules = {"fair"}}).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(other), testing::HasSubstr("flash"));
}

TEST(PlanBenchTest, RefusesCountsThatMakeNoSense) {
  EXPECT_EQ(RunPlanBench({.worker_counts = {0}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RunPlanBench({.n_draws = 0}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
