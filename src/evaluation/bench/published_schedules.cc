#include "evaluation/bench/published_schedules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>

namespace kvlathe {
namespace {

constexpr int kTileRows = 16;

// Rows of whole tokens that fill tiles.
int StepOf(const JobSize& job) {
  const int rows = std::lcm(kTileRows, job.gqa_group);
  return rows <= kMaxItemRows ? rows : job.gqa_group;
}

int RoundedUp(double rows, int step) {
  return std::max(1, static_cast<int>(std::ceil(rows / step - 1e-9))) * step;
}

bool IsDecoding(std::span<const JobSize> jobs) {
  return std::ranges::all_of(jobs, [](const JobSize& job) { return job.n_tokens == 1; });
}

double TimeOf(const PublishedTask& task, std::span<const JobSize> jobs, const CostModel& model) {
  const JobSize& job = jobs[task.job_idx];
  const int n_entries = job.VisibleTo(task.row_end);
  const auto blocks_of = [&](int columns) { return (n_entries + columns - 1) / columns; };
  const int n_more = blocks_of(task.column_block) - blocks_of(kBlockSize);
  const double scaling_flops = double{1} * n_more * (task.row_end - task.row_begin) * job.rank_v;
  return ItemNs(model, job, task.row_begin, task.row_end, 0, n_entries) +
         scaling_flops / model.flops_per_ns;
}

// What the papers weigh rows of a block by: each sees s entries of c channels.
double WorkOf(const PublishedTask& task, std::span<const JobSize> jobs, const CostModel& model) {
  const JobSize& job = jobs[task.job_idx];
  return double{1} * (task.row_end - task.row_begin) * job.VisibleTo(task.row_end) *
         (job.n_channels() + model.softmax_channels);
}

void CutRows(int job_idx, int n_item_rows, int column_block, int row_begin, int row_end,
             std::vector<PublishedTask>* tasks) {
  for (int row = row_begin; row < row_end; row += n_item_rows) {
    tasks->push_back({job_idx, row, std::min(row + n_item_rows, row_end), column_block});
  }
}

// Gives the tasks out that nobody has yet, in their order, each to the worker with the least load,
// who is free first.
void GiveOut(std::span<const JobSize> jobs, const CostModel& model, PublishedShares* shares) {
  for (size_t i = shares->worker_of_task.size(); i < shares->tasks.size(); ++i) {
    const auto worker = std::ranges::min_element(shares->load_ns);
    *worker += TimeOf(shares->tasks[i], jobs, model);
    shares->worker_of_task.push_back(static_cast<int>(worker - shares->load_ns.begin()));
  }
}

std::vector<PublishedTask> WholeJobs(std::span<const JobSize> jobs) {
  std::vector<PublishedTask> tasks;
  for (size_t i = 0; i < jobs.size(); ++i) {
    tasks.push_back({static_cast<int>(i), 0, jobs[i].n_rows()});
  }
  return tasks;
}

}  // namespace

AttentionPlan PlanOf(const PublishedShares& shares, std::span<const JobSize> jobs) {
  AttentionPlan plan = {.worker_begin = {0}, .load_ns = shares.load_ns};
  for (int worker = 0; worker < std::ssize(shares.load_ns); ++worker) {
    for (size_t i = 0; i < shares.tasks.size(); ++i) {
      if (shares.worker_of_task[i] != worker) continue;
      const PublishedTask& task = shares.tasks[i];
      const JobSize& job = jobs[task.job_idx];
      const int64_t n_floats = PartialFloats(task.row_end - task.row_begin, job.rank_v);
      plan.max_item_floats = std::max(plan.max_item_floats, n_floats);
      plan.items.push_back({.job_idx = task.job_idx,
                            .row_begin = task.row_begin,
                            .row_end = task.row_end,
                            .entry_end = job.VisibleTo(task.row_end)});
    }
    plan.worker_begin.push_back(static_cast<int>(plan.items.size()));
  }
  return plan;
}

PublishedShares ShareAsFlashAttention2(std::span<const JobSize> jobs, const CostModel& model,
                                       int n_workers) {
  PublishedShares shares;
  shares.load_ns.assign(n_workers, 0);
  if (IsDecoding(jobs)) {
    shares.tasks = WholeJobs(jobs);
  } else {
    for (size_t i = 0; i < jobs.size(); ++i) {
      const int n_rows = RoundedUp(kBaseItemRows, StepOf(jobs[i]));
      CutRows(static_cast<int>(i), n_rows, kBlockSize, 0, jobs[i].n_rows(), &shares.tasks);
    }
  }
  GiveOut(jobs, model, &shares);
  return shares;
}

PublishedShares ShareAsZack(std::span<const JobSize> jobs, const CostModel& model, int n_workers) {
  PublishedShares shares;
  shares.load_ns.assign(n_workers, 0);
  if (IsDecoding(jobs)) {
    shares.tasks = WholeJobs(jobs);
    std::ranges::stable_sort(shares.tasks, std::greater(),
                             [&](const PublishedTask& task) { return WorkOf(task, jobs, model); });
    GiveOut(jobs, model, &shares);
    return shares;
  }
  const auto channels_of = [&](const JobSize& job) {
    return job.n_channels() + model.softmax_channels;
  };
  double most_channels = 0;
  for (const JobSize& job : jobs) most_channels = std::max(most_channels, channels_of(job));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const double growth = most_channels / channels_of(jobs[i]);
    const int n_rows = RoundedUp(kBaseItemRows * growth, StepOf(jobs[i]));
    const int columns = static_cast<int>(kBlockSize * double{kBaseItemRows} / n_rows);
    const int column_block =
        std::clamp(columns / kTileRows * kTileRows, kTileRows, int{kBlockSize});
    CutRows(static_cast<int>(i), n_rows, column_block, 0, jobs[i].n_rows(), &shares.tasks);
  }
  std::vector<PublishedTask> last_round;
  const size_t n_last = shares.tasks.size() % n_workers;
  last_round.assign(shares.tasks.end() - static_cast<int64_t>(n_last), shares.tasks.end());
  shares.tasks.resize(shares.tasks.size() - n_last);
  double target = 0;
  for (const PublishedTask& task : last_round) target += WorkOf(task, jobs, model) / n_workers;
  const size_t n_before = shares.tasks.size();
  for (const PublishedTask& task : last_round) {
    const JobSize& job = jobs[task.job_idx];
    const double work_of_row = WorkOf(task, jobs, model) / (task.row_end - task.row_begin);
    const int step = StepOf(job), most = task.row_end - task.row_begin;
    const double rows = work_of_row > 0 ? std::min<double>(target / work_of_row, most) : most;
    const int n_rows = std::max(1, static_cast<int>(rows / step)) * step;
    CutRows(task.job_idx, n_rows, task.column_block, task.row_begin, task.row_end, &shares.tasks);
  }
  shares.n_redistributed = static_cast<int>(shares.tasks.size() - n_before);
  GiveOut(jobs, model, &shares);
  return shares;
}

}  // namespace kvlathe
