// Each method of the retention axis fills a RetentionPlan. It has one function, in a file of its
// own.
#pragma once

#include <optional>

#include "kv/retention/retention_plan.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// What a cache of this spec keeps, or nothing if it keeps every entry. The spec must be supported.
// With a quantizer, dropping entries means sealing the others again, so budgets have slack once the
// prompt has ended; and a window is then part of the SealPlan.
std::optional<RetentionPlan> RetentionPlanOf(const Spec& spec);

// A plan with this budget, and without votes.
RetentionPlan PlanWithBudget(const BudgetOptions& budget);

// Makes the plan drop entries of the prompt only.
void KeepWhatIsGenerated(RetentionPlan* plan);

// Sinks and the newest positions (StreamingLLM, arXiv 2309.17453).
RetentionPlan PlanOf(const WindowOptions& options);
// Heavy hitters: attention summed over all queries (H2O, arXiv 2306.14048; docs/methods/h2o.md).
RetentionPlan PlanOf(const H2oOptions& options);
// Attention averaged over the queries that saw an entry (mean attention score, arXiv 2402.06262;
// docs/methods/mas.md).
RetentionPlan PlanOf(const MasOptions& options);
// The attention of the newest query (TOVA, arXiv 2401.06104; docs/methods/tova.md).
RetentionPlan PlanOf(const TovaOptions& options);
// Noisy attention with a temperature (Keyformer, arXiv 2403.09054; docs/methods/keyformer.md).
RetentionPlan PlanOf(const KeyformerOptions& options);
// Votes of the last queries of the prompt, averaged over neighbours (SnapKV, arXiv 2404.14469).
RetentionPlan PlanOf(const SnapkvOptions& options);
// Votes of queries that read the prompt again, the largest of each entry (KVzip, arXiv 2505.23416;
// docs/methods/kvzip.md).
RetentionPlan PlanOf(const KvzipOptions& options);
// Every n positions become one entry (fixed memory pooling; docs/methods/pool.md).
RetentionPlan PlanOf(const PoolOptions& options);
// The model decides which positions become one entry (DMC, arXiv 2403.09636; docs/methods/dmc.md).
RetentionPlan PlanOf(const DmcOptions& options);
// The model decides which positions leave once they are old (DMS, arXiv 2506.05345;
// docs/methods/dms.md). The window is 0 where it is the model's.
RetentionPlan PlanOf(const DmsOptions& options);

}  // namespace kvlathe
