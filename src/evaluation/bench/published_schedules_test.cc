#include "evaluation/bench/published_schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

const CostModel kModel = CostModelFor(Isa::kAvx512Bf16);

JobSize Prompt(int n_tokens, int rank, int gqa_group = 4) {
  return {.n_tokens = n_tokens,
          .gqa_group = gqa_group,
          .n_entries = n_tokens,
          .first_visible = 1,
          .rank_k = rank,
          .rank_v = rank};
}

std::vector<JobSize> DrawnPrompts(int n, uint64_t seed) {
  Random random(seed);
  std::vector<JobSize> jobs;
  for (int i = 0; i < n; ++i) {
    jobs.push_back(Prompt(512 + 64 * static_cast<int>(random.Below(40)),
                          16 + 16 * static_cast<int>(random.Below(8))));
  }
  return jobs;
}

// Every row of every job is in exactly one task, and loads are those of the tasks.
void CheckWhole(const std::vector<JobSize>& jobs, const PublishedShares& shares) {
  std::vector<std::vector<int>> n_times(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) n_times[i].resize(jobs[i].n_rows());
  for (const PublishedTask& task : shares.tasks) {
    EXPECT_EQ(task.row_begin % jobs[task.job_idx].gqa_group, 0);
    for (int row = task.row_begin; row < task.row_end; ++row) ++n_times[task.job_idx][row];
  }
  for (const std::vector<int>& of_job : n_times) {
    EXPECT_EQ(std::ranges::count(of_job, 1), std::ssize(of_job));
  }
  ASSERT_EQ(shares.worker_of_task.size(), shares.tasks.size());
  double least = 0;  // without what small column blocks cost
  for (const PublishedTask& task : shares.tasks) {
    const JobSize& job = jobs[task.job_idx];
    least += ItemNs(kModel, job, task.row_begin, task.row_end, 0, job.VisibleTo(task.row_end));
  }
  const double sum = std::accumulate(shares.load_ns.begin(), shares.load_ns.end(), 0.0);
  EXPECT_GE(sum, least * (1 - 1e-9));
  EXPECT_LE(sum, least * 1.2);
}

TEST(PublishedSchedules, GiveEveryRowOutOnce) {
  for (const int n_workers : {1, 2, 7, 132}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const std::vector<JobSize> jobs = DrawnPrompts(9, seed);
      CheckWhole(jobs, ShareAsFlashAttention2(jobs, kModel, n_workers));
      CheckWhole(jobs, ShareAsZack(jobs, kModel, n_workers));
    }
  }
}

// Workers run what they were given, in its order.
TEST(PublishedSchedules, PlansHaveTheTasksOfEveryWorker) {
  const std::vector<JobSize> jobs = DrawnPrompts(5, 1);
  const PublishedShares shares = ShareAsZack(jobs, kModel, 3);
  const AttentionPlan plan = PlanOf(shares, jobs);
  ASSERT_EQ(plan.worker_begin.size(), 4u);
  ASSERT_EQ(plan.items.size(), shares.tasks.size());
  for (int worker = 0; worker < 3; ++worker) {
    size_t task_idx = 0;
    for (const WorkItem& item : plan.ItemsOf(worker)) {
      while (shares.worker_of_task[task_idx] != worker) ++task_idx;
      const PublishedTask& task = shares.tasks[task_idx++];
      EXPECT_EQ(item.job_idx, task.job_idx);
      EXPECT_EQ(item.row_begin, task.row_begin);
      EXPECT_EQ(item.row_end, task.row_end);
      EXPECT_EQ(item.entry_begin, 0);
      EXPECT_EQ(item.entry_end, jobs[item.job_idx].VisibleTo(item.row_end));
      EXPECT_LE(PartialFloats(item.row_end - item.row_begin, jobs[item.job_idx].rank_v),
                plan.max_item_floats);
    }
  }
}

TEST(PublishedSchedules, FlashAttentionHasBlocksOfEqualRows) {
  const std::vector<JobSize> jobs = {Prompt(1024, 128), Prompt(1024, 16)};
  for (const PublishedTask& task : ShareAsFlashAttention2(jobs, kModel, 4).tasks) {
    EXPECT_EQ(task.row_end - task.row_begin, kBaseItemRows);
    EXPECT_EQ(task.column_block, kBlockSize);
  }
}

// l_h = l c_max / c_h, with the constant for softmax on both sides, and columns that shrink as rows
// grow.
TEST(PublishedSchedules, NarrowHeadsHaveMoreRowsAndFewerColumns) {
  const std::vector<JobSize> jobs = {Prompt(2048, 128), Prompt(2048, 64), Prompt(2048, 16)};
  const PublishedShares shares = ShareAsZack(jobs, kModel, 2);
  const double most = 256 + kModel.softmax_channels;
  const int rows_of[] = {
      128, static_cast<int>(std::ceil(128 * most / (128 + kModel.softmax_channels) / 16)) * 16,
      static_cast<int>(std::ceil(128 * most / (32 + kModel.softmax_channels) / 16)) * 16};
  const int columns_of[] = {64, 64 * 128 / rows_of[1] / 16 * 16, 16};
  ASSERT_GT(rows_of[2], 512);
  std::vector<bool> is_seen(3);
  for (size_t i = 0; i + shares.n_redistributed < shares.tasks.size(); ++i) {
    const PublishedTask& task = shares.tasks[i];
    EXPECT_EQ(task.column_block, columns_of[task.job_idx]);
    if (task.row_end == jobs[task.job_idx].n_rows()) continue;  // what is left of the rows
    EXPECT_EQ(task.row_end - task.row_begin, rows_of[task.job_idx]);
    is_seen[task.job_idx] = true;
  }
  EXPECT_TRUE(is_seen[0] && is_seen[1] && is_seen[2]);
}

// Five blocks of equal work on four workers: the fifth is cut in as many pieces as there are.
TEST(PublishedSchedules, TheLastRoundIsCutForAllWorkers) {
  std::vector<JobSize> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back({.n_tokens = 128,
                    .gqa_group = 1,
                    .n_entries = 8192,
                    .first_visible = 8192 - 127,
                    .rank_k = 64,
                    .rank_v = 64});
  }
  const PublishedShares shares = ShareAsZack(jobs, kModel, 4);
  EXPECT_EQ(shares.n_redistributed, 4);
  ASSERT_EQ(shares.tasks.size(), 8u);
  for (size_t i = 4; i < 8; ++i) {
    EXPECT_EQ(shares.tasks[i].row_end - shares.tasks[i].row_begin, 32);
  }
  const auto [least, most] = std::ranges::minmax(shares.load_ns);
  EXPECT_LT(most, 1.01 * least);
  const std::vector<double> flash = ShareAsFlashAttention2(jobs, kModel, 4).load_ns;
  EXPECT_GT(std::ranges::max(flash), 1.5 * most);
}

TEST(PublishedSchedules, DecodingGoesLongestFirst) {
  std::vector<JobSize> jobs;
  for (const int n_entries : {1000, 2000, 3000, 7000, 8000, 9000}) {
    jobs.push_back({.n_tokens = 1,
                    .gqa_group = 4,
                    .n_entries = n_entries,
                    .first_visible = n_entries,
                    .rank_k = 64,
                    .rank_v = 64});
  }
  const PublishedShares shares = ShareAsZack(jobs, kModel, 3);
  ASSERT_EQ(shares.tasks.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(shares.tasks[i].job_idx, 5 - i);
  EXPECT_EQ(shares.worker_of_task, std::vector<int>({0, 1, 2, 2, 1, 0}));
}

}  // namespace
}  // namespace kvlathe
