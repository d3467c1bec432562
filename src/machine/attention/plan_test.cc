#include "machine/attention/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kStatic, Schedule::kLpt, Schedule::kBalanced};
constexpr int kWorkerCounts[] = {1, 2, 3, 4, 8, 16, 31, 64, 132};

int RandomRank(Random& random, int head_dim, double mean_share) {
  const double rank = head_dim * mean_share * (1 + 0.3 * random.Normal());
  return std::clamp(static_cast<int>(std::lround(rank / 16)) * 16, 16, head_dim);
}

// n_sequences x n_kv_heads jobs; lengths uniform in [min_entries, max_entries]; the last n_tokens
// positions are the queries. mean_share 1: full ranks; else drawn with coefficient of variation
// 0.3.
struct Batch {
  std::string name;
  int n_sequences, n_kv_heads, gqa_group, n_tokens;
  int min_entries, max_entries;
  double mean_share;
};

std::vector<JobSize> JobsOf(const Batch& batch, uint64_t seed) {
  Random random(seed);
  std::vector<JobSize> jobs;
  for (int s = 0; s < batch.n_sequences; ++s) {
    const int n_entries = batch.min_entries +
                          static_cast<int>(random.Below(batch.max_entries - batch.min_entries + 1));
    for (int g = 0; g < batch.n_kv_heads; ++g) {
      const bool is_full = batch.mean_share == 1;
      jobs.push_back({.n_tokens = batch.n_tokens,
                      .gqa_group = batch.gqa_group,
                      .n_entries = n_entries,
                      .first_visible = n_entries - batch.n_tokens + 1,
                      .rank_k = is_full ? 128 : RandomRank(random, 128, batch.mean_share),
                      .rank_v = is_full ? 128 : RandomRank(random, 128, batch.mean_share)});
    }
  }
  return jobs;
}

const std::vector<Batch>& Batches() {
  static const std::vector<Batch> batches = {
      {"decode 16 x 2k-32k", 16, 8, 4, 1, 2048, 32768, 1},
      {"decode 16 x 2k-32k, ranks vary", 16, 8, 4, 1, 2048, 32768, 0.5},
      {"decode 1 x 128k, ranks vary", 1, 8, 4, 1, 131072, 131072, 0.5},
      {"decode 64 x 4k-8k, MHA", 64, 32, 1, 1, 4096, 8192, 0.5},
      {"prefill 1 x 8k prompt, ranks vary", 1, 8, 4, 8192, 8192, 8192, 0.5},
      {"prefill 4 x 512 tokens at 2k-8k", 4, 8, 4, 512, 2048, 8192, 0.5},
      {"prefill 2 x 1k tokens, group 7", 2, 4, 7, 1024, 2048, 8192, 0.5},
  };
  return batches;
}

double MakespanOverMean(const AttentionPlan& plan) {
  const double total = std::accumulate(plan.load_ns.begin(), plan.load_ns.end(), 0.0);
  return *std::max_element(plan.load_ns.begin(), plan.load_ns.end()) /
         (total / static_cast<double>(plan.load_ns.size()));
}

// Every row of every job meets every entry that it sees exactly once, and every part has a place.
void ExpectCoversExactlyOnce(const AttentionPlan& plan, const std::vector<JobSize>& jobs,
                             const std::string& what) {
  std::vector<std::vector<WorkItem>> by_job(jobs.size());
  ASSERT_EQ(plan.worker_begin.front(), 0) << what;
  ASSERT_EQ(plan.worker_begin.back(), static_cast<int>(plan.items.size())) << what;
  for (size_t w = 0; w + 1 < plan.worker_begin.size(); ++w) {
    ASSERT_LE(plan.worker_begin[w], plan.worker_begin[w + 1]) << what;
  }
  for (const WorkItem& item : plan.items) by_job[item.job_idx].push_back(item);
  std::map<std::pair<int, int>, const SplitRows*> splits;
  int64_t next_offset = 0;
  int n_split_rows = 0;
  for (const SplitRows& split : plan.splits) {
    splits[{split.job_idx, split.row_begin}] = &split;
    ASSERT_EQ(split.partial_offset, next_offset) << what;
    ASSERT_EQ(split.n_rows_before, n_split_rows) << what;
    const int n_rows = split.row_end - split.row_begin;
    next_offset += split.n_parts * PartialFloats(n_rows, jobs[split.job_idx].rank_v);
    n_split_rows += n_rows;
  }
  ASSERT_EQ(next_offset, plan.workspace_floats) << what;
  ASSERT_EQ(n_split_rows, plan.n_split_rows) << what;
  for (size_t j = 0; j < jobs.size(); ++j) {
    auto& items = by_job[j];
    std::sort(items.begin(), items.end(), [](const WorkItem& a, const WorkItem& b) {
      return std::pair(a.row_begin, a.entry_begin) < std::pair(b.row_begin, b.entry_begin);
    });
    int row = 0;
    for (size_t i = 0; i < items.size();) {
      ASSERT_EQ(items[i].row_begin, row) << what;
      ASSERT_GT(items[i].row_end, row) << what;
      ASSERT_EQ(items[i].row_end % jobs[j].gqa_group, 0) << what;
      const int row_end = items[i].row_end;
      int entry = 0, n_parts = 0;
      int64_t offset = items[i].partial_offset;
      for (; i < items.size() && items[i].row_begin == row; ++i, ++n_parts) {
        ASSERT_EQ(items[i].row_end, row_end) << what;
        ASSERT_EQ(items[i].entry_begin, entry) << what;
        ASSERT_EQ(items[i].entry_begin % kBlockSize, 0) << what;
        ASSERT_EQ(items[i].partial_offset, offset) << what;
        if (offset >= 0) offset += PartialFloats(row_end - row, jobs[j].rank_v);
        entry = items[i].entry_end;
        ASSERT_LE(PartialFloats(row_end - row, jobs[j].rank_v), plan.max_item_floats) << what;
      }
      ASSERT_EQ(entry, jobs[j].VisibleTo(row_end)) << what;
      const auto split = splits.find({static_cast<int>(j), row});
      ASSERT_EQ(split != splits.end(), n_parts > 1) << what;
      if (n_parts > 1) {
        ASSERT_EQ(split->second->n_parts, n_parts) << what;
        ASSERT_EQ(split->second->row_end, row_end) << what;
      }
      row = row_end;
    }
    ASSERT_EQ(row, jobs[j].n_rows()) << what;
  }
}

TEST(PlanTest, EveryRowAndEntryIsCoveredExactlyOnce) {
  Planner planner{CostModel()};
  for (const Batch& batch : Batches()) {
    for (int n_workers : kWorkerCounts) {
      for (Schedule schedule : kSchedules) {
        const std::vector<JobSize> jobs = JobsOf(batch, n_workers);
        ExpectCoversExactlyOnce(planner.Plan(jobs, n_workers, schedule), jobs,
                                fmt::format("{}, {} workers", batch.name, n_workers));
      }
    }
  }
}

TEST(PlanTest, RaggedSmallBatchesAreCoveredExactlyOnce) {
  Planner planner{CostModel()};
  Random random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<JobSize> jobs(random.Below(12));
    for (JobSize& job : jobs) {
      job.gqa_group = 1 + static_cast<int>(random.Below(9));
      job.n_tokens = random.Below(2) == 0 ? 1 : static_cast<int>(random.Below(400));
      const int n_sink = static_cast<int>(random.Below(5));
      const int n_total = job.n_tokens + static_cast<int>(random.Below(3000));
      job.n_entries = std::max(0, n_total - n_sink);
      job.first_visible = n_total - job.n_tokens + 1 - n_sink;
      job.rank_k = 16 * (1 + static_cast<int>(random.Below(8)));
      job.rank_v = 16 * (1 + static_cast<int>(random.Below(8)));
    }
    const int n_workers = 1 + static_cast<int>(random.Below(20));
    for (Schedule schedule : kSchedules) {
      ExpectCoversExactlyOnce(planner.Plan(jobs, n_workers, schedule), jobs,
                              fmt::format("trial {}", trial));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PlanTest, NothingToDoIsAnEmptyPlan) {
  Planner planner{CostModel()};
  for (Schedule schedule : kSchedules) {
    EXPECT_TRUE(planner.Plan({}, 4, schedule).items.empty());
    const JobSize no_tokens = {.n_tokens = 0, .n_entries = 100, .rank_k = 16, .rank_v = 16};
    EXPECT_TRUE(planner.Plan({&no_tokens, 1}, 4, schedule).items.empty());
  }
}

TEST(PlanTest, BalancedFinishesWithinFivePercentOfTheMean) {
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAmx}) {
    Planner planner{CostModelFor(isa)};
    for (const Batch& batch : Batches()) {
      for (int n_workers : kWorkerCounts) {
        const std::vector<JobSize> jobs = JobsOf(batch, 100 + n_workers);
        double makespan[3];
        for (int i = 0; i < 3; ++i) {
          makespan[i] = MakespanOverMean(planner.Plan(jobs, n_workers, kSchedules[i]));
        }
        fmt::print("{:36} {:6} {:4} workers: static {:.3f}  lpt {:.3f}  balanced {:.3f}\n",
                   batch.name, IsaName(isa), n_workers, makespan[0], makespan[1], makespan[2]);
        EXPECT_LE(makespan[2], 1.05) << batch.name << ", " << n_workers << " workers";
      }
    }
  }
}

TEST(PlanTest, LptIsNoWorseThanStatic) {
  Planner planner{CostModel()};
  for (const Batch& batch : Batches()) {
    const std::vector<JobSize> jobs = JobsOf(batch, 9);
    const double is_static = MakespanOverMean(planner.Plan(jobs, 16, Schedule::kStatic));
    EXPECT_LE(MakespanOverMean(planner.Plan(jobs, 16, Schedule::kLpt)), is_static) << batch.name;
  }
}

TEST(PlanTest, TinyContextsAreNotShredded) {
  Planner planner{CostModel()};
  const std::vector<JobSize> jobs(5, {.n_tokens = 1,
                                      .gqa_group = 4,
                                      .n_entries = (2 * kMinSplitBlocks - 1) * kBlockSize,
                                      .first_visible = (2 * kMinSplitBlocks - 1) * kBlockSize,
                                      .rank_k = 128,
                                      .rank_v = 128});
  EXPECT_TRUE(planner.Plan(jobs, 16, Schedule::kBalanced).splits.empty());
}

TEST(PlanTest, PiecesOfDecodeKeepTheMinimum) {
  Planner planner{CostModel()};
  for (int n_workers : kWorkerCounts) {
    const std::vector<JobSize> jobs = JobsOf({"", 4, 8, 4, 1, 100, 4096, 0.5}, n_workers);
    for (const WorkItem& item : planner.Plan(jobs, n_workers, Schedule::kBalanced).items) {
      if (item.partial_offset < 0) continue;
      EXPECT_GT(item.entry_end - item.entry_begin, (kMinSplitBlocks - 1) * kBlockSize);
    }
  }
}

TEST(PlanTest, RowBlocksGrowAsRanksShrink) {
  EXPECT_EQ(ItemRows(4, 256, 256), 128);
  EXPECT_EQ(ItemRows(4, 192, 256), 160);
  EXPECT_EQ(ItemRows(4, 128, 256), 256);
  EXPECT_EQ(ItemRows(4, 32, 256), kMaxItemRows);
  // Whole tokens, and tiles of 16 rows where both fit.
  EXPECT_EQ(ItemRows(7, 256, 256), 112);
  EXPECT_EQ(ItemRows(71, 256, 256), 71);
  EXPECT_EQ(ItemRows(300, 256, 256), 300);
}

TEST(PlanTest, ConsecutiveRowBlocksOfAHeadStayTogether) {
  Planner planner{CostModel()};
  const std::vector<JobSize> jobs = JobsOf(Batches()[4], 3);
  for (Schedule schedule : kSchedules) {
    const AttentionPlan& plan = planner.Plan(jobs, 2, schedule);
    for (int w = 0; w < 2; ++w) {
      const auto items = plan.ItemsOf(w);
      for (size_t i = 1; i < items.size(); ++i) {
        if (items[i].job_idx != items[i - 1].job_idx) continue;
        EXPECT_EQ(items[i].row_begin, items[i - 1].row_end);
      }
    }
  }
}

TEST(PlanTest, RepeatedPlansReuseTheirMemory) {
  Planner planner{CostModel()};
  const std::vector<JobSize> jobs = JobsOf(Batches()[1], 4);
  for (Schedule schedule : kSchedules) {
    const AttentionPlan& plan = planner.Plan(jobs, 16, schedule);
    const void* items = plan.items.data();
    const void* splits = plan.splits.data();
    planner.Plan(jobs, 16, schedule);
    EXPECT_EQ(plan.items.data(), items);
    EXPECT_EQ(plan.splits.data(), splits);
  }
}

// Blocks are rebuilt for each item, so workers get few of them, and none a few rows.
TEST(Planner, JobsOfRebuiltBlocksHaveFewItems) {
  const JobSize job = {.n_tokens = 512,
                       .gqa_group = 3,
                       .n_entries = 4608,
                       .first_visible = 4097,
                       .rank_k = 64,
                       .rank_v = 176,
                       .is_rebuilt = true};
  const std::vector<JobSize> jobs(3, job);
  for (const Schedule schedule : kSchedules) {
    for (const int n_workers : {1, 2, 3}) {
      Planner planner(CostModelFor(Isa::kAvx512Bf16));
      const AttentionPlan& plan = planner.Plan(jobs, n_workers, schedule);
      EXPECT_LE(plan.items.size(), jobs.size() + n_workers);
      std::vector<int> next_row(jobs.size());
      for (const WorkItem& item : plan.items) {
        EXPECT_GE(item.row_end - item.row_begin, kFewestRebuiltRows)
            << ScheduleName(schedule) << ", " << n_workers << " workers";
        EXPECT_EQ(item.row_begin, next_row[item.job_idx]);
        next_row[item.job_idx] = item.row_end;
      }
      for (const int row : next_row) EXPECT_EQ(row, job.n_rows());
    }
  }
}

}  // namespace
}  // namespace kvlathe
