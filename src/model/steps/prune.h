// Where a step ends at a prune point: entries that go, and keys that are cut.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Each head of a sequence that must prune drops what has the fewest votes. Heads whose sealed
// entries were opened for it go to ForwardState::opened.
class PruneStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "prune"; }
  Status Run(ForwardState* state) override;

 private:
  Status PruneSequence(SequenceCache* cache, ForwardState* state) const;
};

// Where a prompt ended that was read with whole keys: those that are left become rows of the
// cache's ranks.
class CutKeysStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "cut keys"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<CutItem> items_;
};

}  // namespace kvlathe
