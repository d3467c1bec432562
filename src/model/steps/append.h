// Writes new rows into the blocks of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Writes the rows of the first n_sink positions, with whole keys, to plain rows of their own and
// all others to blocks; where positions merge, only the last row of each entry. A sequence whose
// rows are coded as they come fails with kDataLoss if they are not finite.
class AppendStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "append"; }
  Status Run(ForwardState* state) override;

 private:
  // Plans the rows of one head of one sequence; the first of them is row `first_row` of the step.
  void PlanHead(int sequence, const SequenceStep& step, int kv_head_idx, int64_t first_row,
                Activations* a);
  void PlanSinks(const SequenceStep& step, int kv_head_idx, int64_t first_row, int n_sinks,
                 Activations* a);

  AppendPlan plan_;
};

}  // namespace kvlathe
