#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan KeyformerPlan(const Stage& stage) {
  RetentionPlan plan = PlanWithBudget(stage);
  plan.votes = RetentionPlan::Votes::kAll;
  plan.is_noisy = true;
  plan.recent_share = stage.Number("recent");
  plan.interval = stage.Integer("interval");
  plan.tau_init = stage.Number("tau_init");
  plan.tau_end = stage.Number("tau_end");
  return plan;
}

}  // namespace kvlathe
