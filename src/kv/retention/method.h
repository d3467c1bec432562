// The methods of the retention axis: how each fills a RetentionPlan. One function each, one file
// each.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "kv/retention/plan.h"
#include "kv/spec/spec.h"

namespace kvlathe {

struct RetentionMethod {
  std::string_view name;  // as in a spec
  RetentionPlan (*plan)(const Stage& stage);
};

std::span<const RetentionMethod> RetentionMethods();

// What a cache of this spec keeps, or nothing if it keeps every entry. The spec must be supported.
// With a quantizer, dropping entries means sealing the others again, so budgets have slack once the
// prompt has ended; and a window is then part of the SealPlan.
std::optional<RetentionPlan> RetentionPlanOf(const Spec& spec);

// The plan that the keys `keep`, `budget`, `prune` and `score` of a stage describe, as far as its
// method has them.
RetentionPlan PlanWithBudget(const Stage& stage);

// Makes the plan drop entries of the prompt only.
void KeepWhatIsGenerated(RetentionPlan* plan);

// Sinks and the newest positions (StreamingLLM, arXiv 2309.17453).
RetentionPlan WindowPlan(const Stage& stage);
// Heavy hitters: attention summed over all queries (H2O, arXiv 2306.14048; docs/methods/h2o.md).
RetentionPlan H2oPlan(const Stage& stage);
// The attention of the newest query (TOVA, arXiv 2401.06104; docs/methods/tova.md).
RetentionPlan TovaPlan(const Stage& stage);
// Noisy attention with a temperature (Keyformer, arXiv 2403.09054; docs/methods/keyformer.md).
RetentionPlan KeyformerPlan(const Stage& stage);
// Votes of the last queries of the prompt, averaged over neighbours (SnapKV, arXiv 2404.14469).
RetentionPlan SnapkvPlan(const Stage& stage);
// Every n positions become one entry (fixed memory pooling; docs/methods/pool.md).
RetentionPlan PoolPlan(const Stage& stage);
// The model decides which positions become one entry (DMC, arXiv 2403.09636; docs/methods/dmc.md).
RetentionPlan DmcPlan(const Stage& stage);

}  // namespace kvlathe
