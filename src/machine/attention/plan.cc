#include "machine/attention/plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

// Shares may miss their target by this much before anything is cut for it.
constexpr double kTolerance = 0.004;

// Sum over i in [0, n) of clamp(first + i, 0, limit): the visible pairs of n tokens.
double SumClamped(int64_t first, int64_t n, int64_t limit) {
  const auto ramp = [limit](int64_t m) -> double {  // sum over j in [1, m] of min(j, limit)
    if (m <= 0) return 0;
    const double rising = static_cast<double>(std::min(m, limit));
    return rising * (rising + 1) / 2 + static_cast<double>(m - std::min(m, limit)) * limit;
  };
  return ramp(first + n - 1) - ramp(first - 1);
}

// The fewest rows of whole tokens that fill 16-row tiles; one token where that is more than an item
// holds.
int RowStep(int gqa_group) {
  const int rows = std::lcm(16, gqa_group);
  return rows <= kMaxItemRows ? rows : gqa_group;
}

int BlocksIn(int n_entries) { return (n_entries + kBlockSize - 1) / kBlockSize; }

}  // namespace

int JobSize::VisibleTo(int row_end) const {
  const int64_t last_token = (row_end - 1) / gqa_group;
  return static_cast<int>(std::clamp<int64_t>(first_visible + last_token, 0, n_entries));
}

CostModel CostModelFor(Isa isa) {
  CostModel model;
  switch (isa) {
    case Isa::kScalar:
      model.flops_per_ns = 4;
      break;
    case Isa::kAvx2:
      model.flops_per_ns = 105;
      model.softmax_channels = 17;
      break;
    case Isa::kAvx512Bf16:
      model.flops_per_ns = 220;
      model.softmax_channels = 23;
      break;
    case Isa::kAmx:
      model.flops_per_ns = 700;
      model.softmax_channels = 73;
      break;
  }
  return model;
}

double ItemNs(const CostModel& model, const JobSize& job, int row_begin, int row_end,
              int entry_begin, int entry_end) {
  const int first_token = row_begin / job.gqa_group;
  const int n_tokens = (row_end - row_begin) / job.gqa_group;
  const double n_pairs =
      job.gqa_group * SumClamped(int64_t{job.first_visible} + first_token - entry_begin, n_tokens,
                                 entry_end - entry_begin);
  const int n_read = std::max(0, std::min(entry_end, job.VisibleTo(row_end)) - entry_begin);
  const double read_ns = 2.0 * job.n_channels() * n_read / model.read_bytes_per_ns;
  const double compute_ns =
      2.0 * (job.n_channels() + model.softmax_channels) * n_pairs / model.flops_per_ns;
  return std::max(read_ns, compute_ns) + model.item_ns;
}

int ItemRows(int gqa_group, int n_channels, int max_channels) {
  const int step = RowStep(gqa_group);
  const int64_t rows = int64_t{kBaseItemRows} * max_channels / std::max(1, n_channels);
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(rows, kMaxItemRows) / step)) *
         step;
}

int Planner::RowsPerItem(const JobSize& job) const {
  // No item is smaller than this: decode takes the short way.
  if (job.n_rows() <= kBaseItemRows / 2) return kBaseItemRows / 2;
  if (job.is_rebuilt) {  // as few items as can be, of equal size
    const int n_items = (job.n_rows() + kRebuiltItemRows - 1) / kRebuiltItemRows;
    return (job.n_tokens + n_items - 1) / n_items * job.gqa_group;
  }
  if (job.is_scored) {
    const int step = RowStep(job.gqa_group);
    return std::max(1, kScoredItemRows / step) * step;
  }
  return ItemRows(job.gqa_group, job.n_channels(), max_channels_);
}

double Planner::CostOf(const JobSize& job, const Rows& rows, int entry_begin, int entry_end) const {
  return ItemNs(model_, job, rows.begin, rows.end, entry_begin, entry_end);
}

double Planner::CostOfJob(int job_idx, int first_row) const {
  const JobSize& job = jobs_[job_idx];
  const int n_item_rows = RowsPerItem(job);
  double cost = 0;
  for (int row = first_row; row < job.n_rows(); row += n_item_rows) {
    const Rows rows = {job_idx, row, std::min(row + n_item_rows, job.n_rows())};
    cost += CostOf(job, rows, 0, job.VisibleTo(rows.end));
  }
  return cost;
}

const AttentionPlan& Planner::Plan(std::span<const JobSize> jobs, int n_workers,
                                   Schedule schedule) {
  KVL_CHECK_GE(n_workers, 1);
  jobs_ = jobs;
  n_workers_ = n_workers;
  max_channels_ = 0;
  for (const JobSize& job : jobs_) max_channels_ = std::max(max_channels_, job.n_channels());
  plan_.items.clear();
  plan_.splits.clear();
  plan_.worker_begin.assign(n_workers + 1, 0);
  plan_.load_ns.assign(n_workers, 0);
  plan_.n_split_rows = 0;
  plan_.workspace_floats = 0;
  plan_.max_item_floats = 0;
  worker_id_ = 0;
  switch (schedule) {
    case Schedule::kStatic:
      AssignRoundRobin();
      EmitWholeJobs();
      break;
    case Schedule::kLpt:
      AssignLongestFirst();
      EmitWholeJobs();
      break;
    case Schedule::kBalanced:
      EmitBalanced();
      break;
  }
  std::fill(plan_.worker_begin.begin() + worker_id_ + 1, plan_.worker_begin.end(),
            static_cast<int>(plan_.items.size()));
  return plan_;
}

void Planner::AssignRoundRobin() {
  worker_of_job_.resize(jobs_.size());
  for (size_t i = 0; i < jobs_.size(); ++i) worker_of_job_[i] = static_cast<int>(i) % n_workers_;
}

void Planner::AssignLongestFirst() {
  const int n_jobs = static_cast<int>(jobs_.size());
  worker_of_job_.resize(n_jobs);
  by_cost_.clear();
  for (int i = 0; i < n_jobs; ++i) by_cost_.emplace_back(-CostOfJob(i, 0), i);
  std::sort(by_cost_.begin(), by_cost_.end());
  // Behind the sorted jobs, a heap of workers with the least loaded on top.
  for (int w = 0; w < n_workers_; ++w) by_cost_.emplace_back(0.0, w);
  const auto workers = by_cost_.begin() + n_jobs;
  for (int i = 0; i < n_jobs; ++i) {
    std::pop_heap(workers, by_cost_.end(), std::greater<>());
    auto& [load, worker_id] = by_cost_.back();
    worker_of_job_[by_cost_[i].second] = worker_id;
    load -= by_cost_[i].first;
    std::push_heap(workers, by_cost_.end(), std::greater<>());
  }
}

void Planner::EmitWholeJobs() {
  const int n_jobs = static_cast<int>(jobs_.size());
  // Jobs by worker, in their own order within one (a counting sort on worker_begin).
  for (int worker_id : worker_of_job_) ++plan_.worker_begin[worker_id + 1];
  std::partial_sum(plan_.worker_begin.begin(), plan_.worker_begin.end(),
                   plan_.worker_begin.begin());
  job_order_.resize(n_jobs);
  for (int i = n_jobs - 1; i >= 0; --i) {
    job_order_[--plan_.worker_begin[worker_of_job_[i] + 1]] = i;
  }
  int next = 0;
  for (worker_id_ = 0; worker_id_ < n_workers_; ++worker_id_) {
    plan_.worker_begin[worker_id_] = static_cast<int>(plan_.items.size());
    for (; next < n_jobs && worker_of_job_[job_order_[next]] == worker_id_; ++next) {
      const int job_idx = job_order_[next];
      const JobSize& job = jobs_[job_idx];
      const int n_item_rows = RowsPerItem(job);
      for (int row = 0; row < job.n_rows(); row += n_item_rows) {
        const Rows rows = {job_idx, row, std::min(row + n_item_rows, job.n_rows())};
        const int entry_end = job.VisibleTo(rows.end);
        Emit(rows, 0, entry_end, CostOf(job, rows, 0, entry_end));
      }
    }
  }
  worker_id_ = n_workers_ - 1;
}

void Planner::EmitBalanced() {
  left_ns_ = 0;
  const int n_jobs = static_cast<int>(jobs_.size());
  for (int i = 0; i < n_jobs; ++i) left_ns_ += CostOfJob(i, 0);
  target_ns_ = left_ns_ / n_workers_;
  for (int i = 0; i < n_jobs; ++i) {
    for (int row = 0; row < jobs_[i].n_rows();) row += PlaceNextRows(i, row);
  }
}

// Places the job's next rows. Returns how many: 0 if they are to be tried again with the next
// worker.
int Planner::PlaceNextRows(int job_idx, int row) {
  if (!IsLastWorker() && Room() < kTolerance * target_ns_) NextWorker();
  const JobSize& job = jobs_[job_idx];
  Rows rows = {job_idx, row, std::min(row + RowsPerItem(job), job.n_rows())};
  const int entry_end = job.VisibleTo(rows.end);
  const double cost_ns = CostOf(job, rows, 0, entry_end);
  if (Fits(cost_ns)) {
    Emit(rows, 0, entry_end, cost_ns);
    return rows.end - row;
  }
  const int n_rows = RowsThatFit(rows);
  if (job.is_rebuilt && n_rows < kFewestRebuiltRows && plan_.load_ns[worker_id_] > 0) {
    NextWorker();
    return 0;
  }
  // left_ns_ counted full items; a cut changes the items behind it.
  double change_ns = 0;
  if (n_rows < rows.end - row) {
    rows.end = row + n_rows;
    change_ns = CostOf(job, rows, 0, job.VisibleTo(rows.end)) + CostOfJob(job_idx, rows.end) -
                CostOfJob(job_idx, row);
  }
  left_ns_ += change_ns;
  if (PlaceRows(rows)) return n_rows;
  left_ns_ -= change_ns;
  return 0;
}

bool Planner::Fits(double cost_ns) const {
  return IsLastWorker() || cost_ns <= Room() + kTolerance * target_ns_;
}

void Planner::NextWorker() {
  plan_.worker_begin[++worker_id_] = static_cast<int>(plan_.items.size());
  target_ns_ = std::max(0.0, left_ns_) / (n_workers_ - worker_id_);
}

// Rows are cut at multiples of this. Fewer than flops_per_ns / read_bytes_per_ns rows take as long
// as that many, because the blocks have to be read all the same.
int Planner::CutRows(const JobSize& job) const {
  if (job.is_rebuilt) return std::lcm(4, job.gqa_group);  // of which kernels have tiles
  const int step = RowStep(job.gqa_group);
  const int min_rows = static_cast<int>(model_.flops_per_ns / model_.read_bytes_per_ns);
  return std::max(1, (min_rows + step - 1) / step) * step;
}

// Of rows that do not fit, the most steps that do, but at least one.
int Planner::RowsThatFit(const Rows& rows) const {
  const JobSize& job = jobs_[rows.job_idx];
  const int n_rows = rows.end - rows.begin;
  const int step = CutRows(job);
  int n = std::min(step, n_rows);
  for (; n + step < n_rows; n += step) {
    const Rows first = {rows.job_idx, rows.begin, rows.begin + n + step};
    if (!Fits(CostOf(job, first, 0, job.VisibleTo(first.end)))) break;
  }
  return n;
}

// Blocks of the entries that bring the worker nearest to its target: none, all, or so many that
// both sides keep kMinSplitBlocks.
int Planner::BlocksThatFit(const Rows& rows, int entry_begin, int entry_end) const {
  const JobSize& job = jobs_[rows.job_idx];
  const int n_blocks = BlocksIn(entry_end - entry_begin);
  const double room = Room();
  const auto cost_of = [&](int n) {
    return CostOf(job, rows, entry_begin, std::min(entry_begin + n * kBlockSize, entry_end));
  };
  if (n_blocks < 2 * kMinSplitBlocks || !job.can_split_entries())
    return cost_of(n_blocks) - room < room ? n_blocks : 0;
  int fits = 0, too_many = n_blocks;
  while (too_many - fits > 1) {
    const int middle = (fits + too_many) / 2;
    (cost_of(middle) <= room ? fits : too_many) = middle;
  }
  const int nearest = cost_of(too_many) - room < room - cost_of(fits) ? too_many : fits;
  if (nearest < kMinSplitBlocks) return 2 * nearest < kMinSplitBlocks ? 0 : kMinSplitBlocks;
  const int n_rest = n_blocks - nearest;
  if (n_rest < kMinSplitBlocks) {
    return 2 * n_rest < kMinSplitBlocks ? n_blocks : n_blocks - kMinSplitBlocks;
  }
  return nearest;
}

// Gives rows to the current worker and, cut along the entries, to those after it. False if the
// current worker had no room worth using: the rows are still to be placed, with the next one.
bool Planner::PlaceRows(const Rows& rows) {
  const JobSize& job = jobs_[rows.job_idx];
  const int entry_end = job.VisibleTo(rows.end);
  int entry = 0;
  for (;;) {
    const double whole_ns = CostOf(job, rows, entry, entry_end);
    const int n_blocks = BlocksIn(entry_end - entry);
    int n = n_blocks;
    if (!Fits(whole_ns)) {
      n = BlocksThatFit(rows, entry, entry_end);
      const bool is_idle = plan_.load_ns[worker_id_] == 0;
      if (n == 0 && is_idle) {
        const bool is_whole = n_blocks < 2 * kMinSplitBlocks || !job.can_split_entries();
        n = is_whole ? n_blocks : kMinSplitBlocks;
      }
    }
    if (n == n_blocks) {
      entry == 0 ? Emit(rows, 0, entry_end, whole_ns) : EmitPart(rows, entry, entry_end, whole_ns);
      return true;
    }
    if (n > 0) {
      const int cut = entry + n * kBlockSize;
      const double part_ns = CostOf(job, rows, entry, cut);
      EmitPart(rows, entry, cut, part_ns);
      entry = cut;
      // The cut makes one item more than left_ns_ counted.
      left_ns_ += part_ns + CostOf(job, rows, entry, entry_end) - whole_ns;
    }
    NextWorker();
    if (entry == 0) return false;
  }
}

void Planner::Emit(const Rows& rows, int entry_begin, int entry_end, double cost_ns) {
  plan_.load_ns[worker_id_] += cost_ns;
  left_ns_ -= cost_ns;
  plan_.items.push_back({rows.job_idx, rows.begin, rows.end, entry_begin, entry_end});
  plan_.max_item_floats = std::max(
      plan_.max_item_floats, PartialFloats(rows.end - rows.begin, jobs_[rows.job_idx].rank_v));
}

void Planner::EmitPart(const Rows& rows, int entry_begin, int entry_end, double cost_ns) {
  const int n_rows = rows.end - rows.begin;
  Emit(rows, entry_begin, entry_end, cost_ns);
  plan_.items.back().partial_offset = plan_.workspace_floats;
  if (entry_begin == 0) {
    plan_.splits.push_back({.job_idx = rows.job_idx,
                            .row_begin = rows.begin,
                            .row_end = rows.end,
                            .partial_offset = plan_.workspace_floats,
                            .n_rows_before = plan_.n_split_rows});
    plan_.n_split_rows += n_rows;
  }
  ++plan_.splits.back().n_parts;
  plan_.workspace_floats += PartialFloats(n_rows, jobs_[rows.job_idx].rank_v);
}

}  // namespace kvlathe
