// A backend computes. It has the verbs that the steps of a layer call, each with a plan of a whole
// batch. No verb is called for a single row, and none of them knows of a model.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "machine/attention/head_job.h"
#include "machine/attention/schedule.h"
#include "machine/expert_plans.h"
#include "machine/kept_entries.h"
#include "machine/plans.h"

namespace kvlathe {

// What the host learns of the verbs since the last Finish.
struct StepReport {
  // Rows of a sequence that could not be kept, in the order of the verbs: its cache is good for
  // nothing any more.
  struct Failure {
    int sequence;  // as plans number it
    int layer_idx;
    Status status;
  };
  // What re-sealing the entries of a sequence has cost.
  struct Reencoded {
    int sequence;
    Reencoding cost;
  };
  std::vector<Failure> failures;
  std::vector<Reencoded> reencoded;
  // Seconds of attention: sharing it out among workers, and making plain blocks of latents and
  // other bases, the mean over the workers. 0 where a machine does not tell.
  double plan_seconds = 0;
  double rebuild_seconds = 0;
  // Seconds of sums over ranks: until all others had come as far, where that is measured
  // (Backend::set_measures_waiting), and the messages, where it is not both.
  double waiting_seconds = 0;
  double message_seconds = 0;
};

// Verbs are called from one thread at a time and take effect in the order of the calls, those of
// the memory among them (machine/device.h). A verb may return before it has run: it has copied what
// it needs of its plan by then, and what it makes is there for later verbs. The host learns what
// came of them from Finish, and reads what they made by what waits for them: Device::Download and
// HostView, TakeChannel, Route and MergeRows.
class Backend {
 public:
  virtual ~Backend() = default;

  // With `deterministic` every row gets the bits that it has alone, whatever else is in a batch. It
  // is slower.
  virtual void set_deterministic(bool deterministic) = 0;

  virtual void Embed(const EmbedPlan& plan) = 0;
  virtual void TakeRows(const TakeRowsPlan& plan) = 0;
  // Returns the channel of every row, [n_rows].
  virtual std::vector<float> TakeChannel(const TakeChannelPlan& plan) = 0;
  // Waits. Returns the largest numbers of every row, so that not all of them have to come to the
  // host; nothing where the host reads the memory itself.
  virtual std::vector<LargestNumbers> FindLargest(const LargestPlan& /*plan*/) { return {}; }
  // Computes y = x W^T + bias.
  virtual void Project(const ProductPlan& plan) = 0;
  virtual void ProjectHeads(const HeadProductsPlan& plan) = 0;
  // The plans must be of the same rows; each has columns of its own.
  virtual void Normalise(std::span<const NormPlan> plans) = 0;
  virtual void Gate(const GatePlan& plan) = 0;
  virtual void Cap(const CapPlan& plan) = 0;
  // Waits, because the plans of products follow from it. What a row is told is the same bits
  // whatever rows stand beside it, deterministic or not; of equal scores the lower number is taken.
  virtual RoutedRows Route(const RoutePlan& plan) = 0;
  virtual void GatherRows(const GatherRowsPlan& plan) = 0;
  virtual void ProjectExperts(const ExpertProductsPlan& plan) = 0;
  virtual void AddWeighted(const WeightedRowsPlan& plan) = 0;
  virtual void RotateAndMap(const RotatePlan& plan) = 0;
  // Finish fails with kUnavailable where another machine does not answer.
  virtual void SumOverRanks(const SumPlan& plan) = 0;

  // Waits until all has run. kResourceExhausted when the system had no memory for something that
  // concerns all sequences.
  virtual StatusOr<StepReport> Finish() = 0;

  // A sequence fails where rows that are coded as they come hold NaN or infinity.
  virtual void Append(const AppendPlan& plan) = 0;
  // Computes attention, and the votes of rows that give them. Finish fails where the system has no
  // memory for partial results or scores.
  virtual void Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) = 0;
  // Adds to the sums by which a sequence finds its basis. n_dims is a multiple of 16.
  virtual void GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) = 0;

  // Waits, because the lengths of caches follow from it: n_closed[item.first_closed + t] becomes
  // MergedRows::n_closed of token t of the item.
  virtual void MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) = 0;
  // Keeps what plan.kept says of every head and closes the gaps, or copies what stays to other
  // blocks.
  virtual void Prune(const PrunePlan& plan) = 0;
  virtual void CutKeys(std::span<const CutItem> items) = 0;

  // A sequence fails with kDataLoss where rows are not finite, with kResourceExhausted where the
  // system has no memory for its run; the runs of the others are what they are without it.
  virtual void Seal(const SealBatch& batch) = 0;
  // The same, also where what rows are stacked on is not finite or too large to square.
  virtual void SealRotated(const RotatedBatch& batch) = 0;
  // Makes plain rows of sealed ones, to seal them again otherwise.
  virtual void Open(std::span<const OpenedRun> runs) = 0;
  // Finish tells how far each run lies from the plain rows that it was sealed from.
  virtual void MeasureReencodings(std::span<const ReencodedRun> runs) = 0;

  // Whether sums over ranks begin by waiting for all ranks, which costs a message more, so that
  // StepReport tells waiting from messages.
  virtual void set_measures_waiting(bool /*measures*/) {}
  // Whether products with weights in blocks leave rows as they are, which is slower, or round them
  // to 8 bits. A machine that never rounds them ignores it.
  virtual void set_exact_rows(bool /*exact*/) {}
};

}  // namespace kvlathe
