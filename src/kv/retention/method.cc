#include "kv/retention/method.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

std::span<const RetentionMethod> RetentionMethods() {
  static constexpr RetentionMethod kMethods[] = {{"h2o", H2oPlan},
                                                 {"tova", TovaPlan},
                                                 {"keyformer", KeyformerPlan},
                                                 {"snapkv", SnapkvPlan},
                                                 {"window", WindowPlan}};
  return kMethods;
}

std::optional<RetentionPlan> RetentionPlanOf(const Spec& spec) {
  const Stage* stage = spec.retention();
  if (stage == nullptr) return std::nullopt;
  const auto methods = RetentionMethods();
  const auto method = std::ranges::find(methods, stage->name, &RetentionMethod::name);
  KVL_CHECK(method != methods.end());
  return method->plan(*stage);
}

RetentionPlan PlanWithBudget(const Stage& stage) {
  RetentionPlan plan;
  if (stage.Has("keep")) plan.keep = stage.Number("keep");
  if (stage.Has("budget")) {
    plan.n_kept = stage.Integer("budget");
    plan.of_prompt = stage.Word("budget") == "prompt";
  }
  if (stage.Has("prune")) plan.prunes_runs = stage.Word("prune") == "run";
  return plan;
}

}  // namespace kvlathe
