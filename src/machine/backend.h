// A backend computes. It has the verbs that the steps of a layer call, each with a plan of a whole
// batch. No verb is called for a single row, and none of them knows of a model.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "machine/attention/head_job.h"
#include "machine/attention/schedule.h"
#include "machine/plans.h"

namespace kvlathe {

// Verbs are called from one thread at a time and return when their results are there.
class Backend {
 public:
  virtual ~Backend() = default;

  // With `deterministic` every row gets the bits that it has alone, whatever else is in a batch. It
  // is slower.
  virtual void set_deterministic(bool deterministic) = 0;

  virtual void TakeRows(const TakeRowsPlan& plan) = 0;
  // Returns the channel of every row, [n_rows].
  virtual std::vector<float> TakeChannel(const TakeChannelPlan& plan) = 0;
  // Computes y = x W^T + bias.
  virtual void Project(const ProductPlan& plan) = 0;
  virtual void ProjectHeads(const HeadProductsPlan& plan) = 0;
  // The plans must be of the same rows; each has columns of its own.
  virtual void Normalise(std::span<const NormPlan> plans) = 0;
  virtual void Gate(const GatePlan& plan) = 0;
  virtual void RotateAndMap(const RotatePlan& plan) = 0;

  // is_finite[i] becomes 0 where rows of items[i] that are coded as they come hold NaN or infinity.
  virtual void Append(const AppendPlan& plan, std::span<uint8_t> is_finite) = 0;
  // Computes attention, and the votes of rows that give them. Errors are those of Attention::Run.
  virtual Status Attend(std::span<const HeadJob> jobs, float sm_scale, Schedule schedule) = 0;
  // Adds to the sums by which a sequence finds its basis. n_dims is a multiple of 16.
  virtual void GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) = 0;

  virtual void MergeRows(const MergeRowsPlan& plan) = 0;
  // As PruneHeads (cpu/prune.h).
  virtual std::vector<int> Prune(const PrunePlan& plan) = 0;
  virtual void CutKeys(std::span<const CutItem> items) = 0;

  // Errors as Sealer::Run.
  virtual Status Seal(const SealBatch& batch) = 0;
  // Errors as SealByOnlineSvd.
  virtual Status SealRotated(std::span<const RotatedHeadPlan> heads) = 0;
  // How far each run lies from the plain rows that it was sealed from.
  virtual void MeasureReencodings(std::span<const ReencodedRun> runs,
                                  std::span<Reencoding> errors) = 0;
};

}  // namespace kvlathe
