#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const WindowOptions& options) {
  RetentionPlan plan;
  plan.n_recent = options.size;
  plan.n_kept = plan.n_recent + options.n_sink;
  return plan;
}

}  // namespace kvlathe
