// Runs that a step ended become packed blocks, each sequence's on its own where one of them fails.
#pragma once

#include <span>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

class SealStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "seal"; }
  // Of StepSequences::sealing. A sequence whose rows are not finite fails with kDataLoss, one for
  // which the system has no memory with kResourceExhausted.
  Status Run(ForwardState* state) override;
  // What became of each cache.
  std::vector<Status> SealEach(std::span<SequenceCache* const> caches, ForwardState* state) const;

 private:
  using RunObjects = SequenceCache::RunObjects;
  using Heads = std::vector<SealHeadPlan>;  // [n_kv_heads], of one cache

  // The runs of one cache, at most one for each of its heads, which go to `heads`.
  void AddRuns(SequenceCache* cache, const RunObjects& objects, const KeyRotation& rotation,
               Heads* heads, std::vector<SealRunPlan>* runs) const;
  // `heads` are those of the caches.
  std::vector<RotatedHeadPlan> RotatedHeads(std::span<SequenceCache* const> caches,
                                            std::span<const Heads> heads) const;
  // Seals together; an error says nothing about which of the caches it is.
  Status SealTogether(std::span<SequenceCache* const> caches, std::span<const RunObjects> objects,
                      ForwardState* state) const;
  // Counts what sealing entries again, which a prune opened, has changed of them. `packed` are the
  // blocks and records of each cache.
  void MeasureReencodings(std::span<SequenceCache* const> caches,
                          std::span<const RunObjects> packed, ForwardState* state) const;
};

}  // namespace kvlathe
