// Decides which worker computes which part of the attention of a layer. The host does so from sizes
// alone.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/cpu_features.h"
#include "machine/attention/schedule.h"

namespace kvlathe {

// What planning needs to know of a HeadJob (head_job.h), whose fields mean the same.
struct JobSize {
  int n_tokens = 0;
  int gqa_group = 1;
  int n_entries = 0;
  int first_visible = 0;
  int rank_k = 0;
  int rank_v = 0;
  // Whether the machine makes other rows of a block for all rows of an item together: then an item
  // has up to kRebuiltItemRows, and no worker gets few of them.
  bool is_rebuilt = false;
  // Whether entries are scored. The scores of all rows are kept for a while then, so items have
  // kScoredItemRows at most, and the entries of a job of several tokens are not split.
  bool is_scored = false;

  bool can_split_entries() const { return !is_scored || n_tokens == 1; }
  int n_rows() const { return n_tokens * gqa_group; }
  int n_channels() const { return rank_k + rank_v; }
  // How many entries the last of rows [0, row_end) sees. The others see no more than it.
  int VisibleTo(int row_end) const;
};

// Estimates the nanoseconds that one item takes on one worker: the longer of reading and computing,
// plus a constant. Only the ratio of two estimates matters for balance.
struct CostModel {
  double read_bytes_per_ns = 16;  // of K and V rows, when all workers read
  double flops_per_ns = 200;
  // What exponentials, maxima and sums cost for a score, counted in channels of rank_k + rank_v. It
  // is the softmax constant in the cost formula of ZACK and FDC.
  double softmax_channels = 16;
  double item_ns = 500;  // starting a kernel, filling q and o, finishing or merging rows
};
// The model of one core. AVX2 and AVX-512 BF16 were measured on Zen 4 with blocks in L2 and 32 to
// 256 rows (98 and 205 GFLOP/s of useful work at ranks 128, 92 and 190 at 64). For AMX it is what
// oneDNN reaches on Sapphire Rapids, with the time of a softmax score on Zen 4.
CostModel CostModelFor(Isa isa);

// What the model says of rows [row_begin, row_end) of a job, at token boundaries, with entries
// [entry_begin, entry_end) as far as the rows see them.
double ItemNs(const CostModel& model, const JobSize& job, int row_begin, int row_end,
              int entry_begin, int entry_end);

// An item attends with rows [row_begin, row_end) of a job, both at token boundaries, to entries
// [entry_begin, entry_end) of its blocks, as far as each row sees them (first_visible). For any
// rows there is exactly one item with entry_begin 0, even when no entry is visible; it also adds
// their sink.
struct WorkItem {
  int job_idx = 0;
  int row_begin = 0;
  int row_end = 0;
  int entry_begin = 0;  // multiple of kBlockSize
  int entry_end = 0;
  // Where the partial result goes in the workspace, in floats. It is -1 when the item covers all
  // entries of its rows and finishes them.
  int64_t partial_offset = -1;
};

// Rows whose entries are split over several items. The partial results lie one after the other,
// each PartialFloats(n_rows, rank_v) long.
struct SplitRows {
  int job_idx = 0;
  int row_begin = 0;
  int row_end = 0;
  int n_parts = 0;
  int64_t partial_offset = 0;
  int n_rows_before = 0;  // how many rows the splits before this one have
};

// How many floats the partial results of n_rows take in one piece of memory: n_rows x rank_v sums,
// and a maximum and a sum of each row. All three parts have a multiple of 64 bytes, since rank_v is
// a multiple of 16.
constexpr int64_t PartialFloats(int n_rows, int rank_v) {
  return int64_t{n_rows} * rank_v + 2 * ((int64_t{n_rows} + 15) / 16 * 16);
}

struct AttentionPlan {
  std::vector<WorkItem> items;    // by worker, in the order of execution
  std::vector<int> worker_begin;  // [n_workers + 1] indices of items
  std::vector<double> load_ns;    // [n_workers] by the cost model
  std::vector<SplitRows> splits;
  int n_split_rows = 0;
  int64_t workspace_floats = 0;
  int64_t max_item_floats = 0;  // the largest PartialFloats of an item

  std::span<const WorkItem> ItemsOf(int worker_id) const {
    return {items.data() + worker_begin[worker_id], items.data() + worker_begin[worker_id + 1]};
  }
};

// The most rows of an item, which pass over the blocks together. 256 rows of q, o and
// probabilities at head_dim 128 take a quarter of a 1 MiB L2, and more rows save no time: at 128
// rows a byte of K or V already serves 128 FLOPs, and on Zen 4 items of 32 to 256 rows run equally
// fast.
inline constexpr int kMaxItemRows = 256;
inline constexpr int kBaseItemRows = 128;
inline constexpr int kScoredItemRows = 64;
inline constexpr int kRebuiltItemRows = 4096;
inline constexpr int kFewestRebuiltRows = 512;
// Below twice this many blocks, entries are not split: the merge would cost more than it saves.
inline constexpr int kMinSplitBlocks = 4;

// How many rows a full item has in a job with n_channels = rank_k + rank_v, where the widest job of
// the layer has max_channels. They are kBaseItemRows * max_channels / n_channels (ZACK's rule for a
// prompt), so that items cost the same, rounded to a multiple of 16 rows where that holds whole
// tokens.
int ItemRows(int gqa_group, int n_channels, int max_channels);

// Makes plans. It keeps its memory, so that a plan of a size seen before allocates nothing.
//
// kBalanced lays all row blocks of all jobs in a line and gives each worker the next share of equal
// cost. A row block that a share ends in is cut between rows; where a step of rows is too coarse (a
// decode token; many workers) its entries are cut, between blocks. This is the papers' last-round
// redistribution with the shares in order: a worker's row blocks of one head follow each other, and
// a head's K and V stay in the caches of few workers. It takes O(items), plus O(log items) for each
// of the fewer than 2 n_workers cuts; the other schedules sort.
class Planner {
 public:
  explicit Planner(const CostModel& model) : model_(model) {}

  // Plans for n_workers >= 1. The plan is valid until the next call.
  const AttentionPlan& Plan(std::span<const JobSize> jobs, int n_workers, Schedule schedule);

 private:
  struct Rows {
    int job_idx, begin, end;
  };

  double CostOf(const JobSize& job, const Rows& rows, int entry_begin, int entry_end) const;
  double CostOfJob(int job_idx, int first_row) const;  // what its rows from first_row on cost
  int RowsPerItem(const JobSize& job) const;

  void AssignRoundRobin();
  void AssignLongestFirst();
  void EmitWholeJobs();
  void EmitBalanced();
  int PlaceNextRows(int job_idx, int row);

  bool IsLastWorker() const { return worker_id_ + 1 == n_workers_; }
  bool Fits(double cost_ns) const;
  double Room() const { return target_ns_ - plan_.load_ns[worker_id_]; }
  void NextWorker();
  int CutRows(const JobSize& job) const;
  int RowsThatFit(const Rows& rows) const;
  int BlocksThatFit(const Rows& rows, int entry_begin, int entry_end) const;
  bool PlaceRows(const Rows& rows);
  void Emit(const Rows& rows, int entry_begin, int entry_end, double cost_ns);
  void EmitPart(const Rows& rows, int entry_begin, int entry_end, double cost_ns);

  CostModel model_;
  AttentionPlan plan_;
  std::span<const JobSize> jobs_;
  int n_workers_ = 1;
  int max_channels_ = 0;
  std::vector<int> worker_of_job_;
  std::vector<int> job_order_;
  std::vector<std::pair<double, int>> by_cost_;  // (cost, job) or (load, worker)

  // The share that kBalanced is filling.
  int worker_id_ = 0;
  double target_ns_ = 0;
  double left_ns_ = 0;  // what all that is not emitted yet costs
};

}  // namespace kvlathe
