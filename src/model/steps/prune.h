// Drops entries where the step ends at a prune point, and cuts whole keys where the prompt ends.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Makes each head of a sequence that must prune drop the entries with the fewest votes. Heads whose
// sealed entries were opened for it are added to ForwardState::opened.
class PruneStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "prune"; }
  Status Run(ForwardState* state) override;

 private:
  Status PruneSequence(SequenceCache* cache, ForwardState* state);

  std::vector<PruneHead> heads_;
};

// Where a prompt ended that was read with whole keys, makes those that are left rows of the cache's
// ranks.
class CutKeysStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "cut keys"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<CutItem> items_;
};

}  // namespace kvlathe
