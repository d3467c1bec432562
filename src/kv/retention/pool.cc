#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const PoolOptions& options) {
  RetentionPlan plan;
  plan.merge = {.every = options.every};
  return plan;
}

}  // namespace kvlathe
