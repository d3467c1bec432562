#include "kv/retention/retention_methods.h"

namespace kvlathe {

// Chosen once, where the prompt ends; what is generated stays.
RetentionPlan PlanOf(const SnapkvOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kPromptTail;
  plan.n_recent = options.window;
  plan.pool_kernel = options.kernel;
  plan.prunes_runs = false;
  KeepWhatIsGenerated(&plan);
  return plan;
}

}  // namespace kvlathe
