// New rows into the blocks of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// The first n_sink positions go to plain rows of their own, with whole keys; the others to blocks,
// where positions merge the last row of each entry. A sequence whose rows are coded as they come
// and are not finite fails with kDataLoss.
class AppendStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "append"; }
  Status Run(ForwardState* state) override;

 private:
  // Rows of one head of one sequence, the first of which is row `first_row` of the step.
  void PlanHead(const SequenceStep& step, int kv_head_idx, int64_t first_row, Activations* a);
  void PlanSinks(const SequenceStep& step, int kv_head_idx, int64_t first_row, int n_sinks,
                 Activations* a);

  AppendPlan plan_;
  std::vector<uint8_t> is_finite_;
};

}  // namespace kvlathe
