#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const DmcOptions& options) {
  RetentionPlan plan;
  plan.merge = {.window = options.window};
  return plan;
}

}  // namespace kvlathe
