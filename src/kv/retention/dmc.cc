#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan DmcPlan(const Stage& stage) {
  RetentionPlan plan;
  plan.merge = {.window = stage.Integer("window")};
  return plan;
}

}  // namespace kvlathe
