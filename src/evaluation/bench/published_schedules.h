// How FlashAttention-2 (Dao 2023, arXiv 2307.08691) and the papers ZACK and FDC share attention out
// among workers, simulated from sizes alone: what `bench plan` shows beside the engine's planner.
#pragma once

#include <span>
#include <vector>

#include "format/rows/block_layout.h"
#include "machine/attention/plan.h"

namespace kvlathe {

// A block of rows of one job, which one worker computes.
struct PublishedTask {
  int job_idx = 0;
  int row_begin = 0;
  int row_end = 0;
  int column_block = kBlockSize;  // entries whose scores are in scratch together
};

struct PublishedShares {
  std::vector<double> load_ns;       // [n_workers] by the cost model
  std::vector<PublishedTask> tasks;  // in the order in which they are given out
  std::vector<int> worker_of_task;   // [tasks.size()]
  int n_redistributed = 0;           // tasks at the end of the list that the last round became
};

// What every worker does, as attention runs it. Kernels have scores of kBlockSize entries together:
// the time that smaller column blocks take is not in it.
AttentionPlan PlanOf(const PublishedShares& shares, std::span<const JobSize> jobs);

// Every job has blocks of kBaseItemRows rows, whatever its channels; whole jobs where each has one
// token. The next block goes to the worker that is free first, as the hardware does it.
PublishedShares ShareAsFlashAttention2(std::span<const JobSize> jobs, const CostModel& model,
                                       int n_workers);

// ZACK's rule. With c = rank_k + rank_v + CostModel::softmax_channels of a job and c_max of the
// widest, blocks have kBaseItemRows * c_max / c rows, rounded up to a multiple of 16, so that all
// cost the same; the scores of a block keep their room in scratch, so its column block shrinks by
// as much, down to 16. Blocks are given out in rounds of n_workers, to whoever is free first. The
// last round, where it is not full, is cut anew: with target the mean over workers of what its
// blocks cost, each has blocks of so many rows (a multiple of 16) as cost that, and these go one by
// one to the worker with the least load. Where each job has one token, whole jobs go longest first
// to the least loaded (LPT).
//
// Smaller column blocks cost: the sums of a row are scaled once for each, rank_v multiplications.
PublishedShares ShareAsZack(std::span<const JobSize> jobs, const CostModel& model, int n_workers);

}  // namespace kvlathe
