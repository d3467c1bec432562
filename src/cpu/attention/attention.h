// Attention of a ragged batch over compressed blocks on a CPU. The planner
// (machine/attention/plan.h) shares it out, the workers run the plan, and partial results are
// merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/attention/head_job.h"
#include "machine/attention/plan.h"
#include "machine/attention/schedule.h"

namespace kvlathe {

// Seconds of what attention does beside attending.
struct AttentionSeconds {
  double plan = 0;     // sharing the jobs out
  double rebuild = 0;  // making plain blocks of latents and other bases, the mean over the workers
};

// Shares jobs out over n_workers; the plan is valid until the next call.
using PlanMaker = std::function<const AttentionPlan&(std::span<const JobSize>, int n_workers)>;

// The calling thread plans, and the workers run the items in one parallel region, in which ids
// become addresses item by item. A second region follows only when rows were split along their
// entries, and a third when these are scored. Memory for scratch, partial results and scores is
// kept from call to call.
class Attention {
 public:
  // All of them outlive it. Queries and outputs of jobs lie in `memory`, maps and codebooks are
  // among `residents`.
  Attention(ThreadPool* pool, Isa isa, CpuDevice* memory, const CpuResidents* residents);
  ~Attention();
  // With true, every row gets the bits that it would get alone. kBalanced cuts entries in places
  // that depend on the rest of the batch and on the number of workers, so it gives way to kLpt; AMX
  // gives way to AVX-512, whose arithmetic on a row does not depend on the rows beside it.
  void set_deterministic(bool deterministic);
  // With true, codes of few bits are not multiplied as bytes (AttendParams::is_exact).
  void set_exact(bool exact);
  // Runs all jobs of one layer. The error is kResourceExhausted when the system has no memory for
  // partial results or scores, and then nothing was computed.
  Status Run(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule);
  // The same, shared out as the caller wants it.
  Status RunAs(std::span<const HeadJob> jobs, const ScoreRule& rule, const PlanMaker& make_plan);
  // Of all runs since the last call.
  AttentionSeconds TakeSeconds();

 private:
  struct State;
  void Begin(std::span<const HeadJob> jobs, const ScoreRule& rule);
  Status RunPlan(const AttentionPlan& plan);
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
