#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const H2oOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kAll;
  plan.recent_share = options.recent;
  return plan;
}

}  // namespace kvlathe
