#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan PoolPlan(const Stage& stage) {
  RetentionPlan plan;
  plan.merge = {.every = stage.Integer("n")};
  return plan;
}

}  // namespace kvlathe
