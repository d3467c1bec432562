#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan H2oPlan(const Stage& stage) {
  RetentionPlan plan = PlanWithBudget(stage);
  plan.votes = RetentionPlan::Votes::kAll;
  plan.recent_share = stage.Number("recent");
  return plan;
}

}  // namespace kvlathe
