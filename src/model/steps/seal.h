// Turns the runs that a step ended into packed blocks. Where one of them fails, each sequence is
// sealed on its own.
#pragma once

#include <span>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

class SealStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "seal"; }
  // Seals the runs of StepSequences::sealing. A sequence whose rows are not finite fails with
  // kDataLoss, one for which the system has no memory with kResourceExhausted.
  Status Run(ForwardState* state) override;
  // Seals these caches and says what became of each.
  std::vector<Status> SealEach(std::span<SequenceCache* const> caches, ForwardState* state) const;

 private:
  using Heads = std::vector<SealHeadPlan>;  // [n_kv_heads], of one cache

  // The runs of one cache, at most one for each of its heads, which go to `heads`.
  void AddRuns(SequenceCache* cache, const RunObjects& objects, const KeyRotationId& rotation,
               Heads* heads, std::vector<SealRunPlan>* runs) const;
  // `heads` are those of the caches.
  std::vector<RotatedHeadPlan> RotatedHeads(std::span<SequenceCache* const> caches,
                                            std::span<const Heads> heads) const;
  // Seals all caches together; an error does not say which of them it is about.
  Status SealTogether(std::span<SequenceCache* const> caches, std::span<const RunObjects> objects,
                      ForwardState* state) const;
  // Counts what sealing entries again, which a prune opened, has changed of them. `packed` are the
  // blocks and records of each cache.
  void MeasureReencodings(std::span<SequenceCache* const> caches,
                          std::span<const RunObjects> packed, ForwardState* state) const;
};

}  // namespace kvlathe
