#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const MasOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kAll;
  plan.averages_votes = true;
  plan.recent_share = options.recent;
  return plan;
}

}  // namespace kvlathe
