#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const TovaOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kLast;
  plan.shares_heads = options.shares_heads;
  return plan;
}

}  // namespace kvlathe
