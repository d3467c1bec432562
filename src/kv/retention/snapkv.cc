#include "kv/retention/method.h"

namespace kvlathe {

// Chosen once, where the prompt ends; what is generated stays.
RetentionPlan SnapkvPlan(const Stage& stage) {
  RetentionPlan plan = PlanWithBudget(stage);
  plan.votes = RetentionPlan::Votes::kPromptTail;
  plan.n_recent = stage.Integer("window");
  plan.pool_kernel = stage.Integer("kernel");
  plan.prunes_runs = false;
  KeepWhatIsGenerated(&plan);
  return plan;
}

}  // namespace kvlathe
