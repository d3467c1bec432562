#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan TovaPlan(const Stage& stage) {
  RetentionPlan plan = PlanWithBudget(stage);
  plan.votes = RetentionPlan::Votes::kLast;
  plan.shares_heads = stage.Word("heads") == "shared";
  return plan;
}

}  // namespace kvlathe
