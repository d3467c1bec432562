#include "kv/retention/retention_methods.h"

namespace kvlathe {

// Chosen once, where the prompt ends and has been read twice; what is generated stays.
RetentionPlan PlanOf(const KvzipOptions& options) {
  RetentionPlan plan = PlanWithBudget(options.budget);
  plan.votes = RetentionPlan::Votes::kRepeat;
  plan.repeat.chunk = options.chunk;
  plan.joins_heads = options.joins_heads;
  plan.n_recent = options.window;
  plan.prunes_runs = false;
  KeepWhatIsGenerated(&plan);
  return plan;
}

}  // namespace kvlathe
