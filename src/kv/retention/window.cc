#include "kv/retention/method.h"

namespace kvlathe {

RetentionPlan WindowPlan(const Stage& stage) {
  RetentionPlan plan;
  plan.n_recent = stage.Integer("size");
  plan.n_kept = plan.n_recent + stage.Integer("sink");
  return plan;
}

}  // namespace kvlathe
