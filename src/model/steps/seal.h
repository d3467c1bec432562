// Turns the runs that a step ended into packed blocks.
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
  // Seals these caches, which plans know by these numbers, and says for which of them there was no
  // room. What goes wrong on the machine, Backend::Finish tells.
  StatusOr<std::vector<Status>> SealEach(std::span<SequenceCache* const> caches,
                                         std::span<const int> sequences, ForwardState* state) const;

 private:
  using Heads = std::vector<SealHeadPlan>;  // [n_kv_heads], of one cache
  struct SealedCache {
    SequenceCache* cache;
    int sequence;
    RunObjects objects;
  };

  // The runs of one cache, at most one for each of its heads, which go to `heads`.
  void AddRuns(const SealedCache& sealed, const KeyRotationId& rotation, Heads* heads,
               std::vector<SealRunPlan>* runs) const;
  // `heads` are those of the caches.
  std::vector<RotatedHeadPlan> RotatedHeads(std::span<const SealedCache> sealed,
                                            std::span<const Heads> heads) const;
  Status SealAll(std::span<const SealedCache> sealed, ForwardState* state) const;
  // How far runs that were opened lie from their rows, now that they are sealed again.
  void MeasureReencodings(std::span<const SealedCache> sealed, ForwardState* state) const;
};

}  // namespace kvlathe
