#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const KeyformerOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kAll;
  plan.is_noisy = true;
  plan.recent_share = options.recent;
  plan.interval = options.interval;
  plan.tau_init = options.tau_init;
  plan.tau_end = options.tau_end;
  return plan;
}

}  // namespace kvlathe
