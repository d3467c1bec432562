#include <algorithm>

#include "kv/retention/retention_methods.h"

namespace kvlathe {

RetentionPlan PlanOf(const DmsOptions& options) {
  RetentionPlan plan;
  plan.run = options.run;
  plan.interval = options.interval;
  plan.sweep = {.window = options.window, .offset = options.offset};
  return plan;
}

int64_t FirstUnsettled(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  const int64_t last = LastPrunePoint(plan, place, n_tokens);
  return std::max<int64_t>(place.n_sink, last - plan.sweep->window);
}

int MostUnsettled(const RetentionPlan& plan) {
  return plan.sweep->window + std::max(plan.run, plan.interval);
}

}  // namespace kvlathe
