#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan PlanOf(const PoolOptions& options) {
  RetentionPlan plan;
  plan.merge = {.every = options.every};
  return plan;
}

}  // namespace kvlathe
