#include "kv/retention/method.h"

#include <algorithm>

#include "base/check.h"
#include "format/block_layout.h"

namespace kvlathe {
namespace {

// A smaller one would seal what stays more often, at an error each time.
constexpr double kSealedSlack = 0.25;

}  // namespace

std::span<const RetentionMethod> RetentionMethods() {
  static constexpr RetentionMethod kMethods[] = {
      {"h2o", H2oPlan},       {"tova", TovaPlan},     {"keyformer", KeyformerPlan},
      {"snapkv", SnapkvPlan}, {"window", WindowPlan}, {"pool", PoolPlan},
      {"dmc", DmcPlan}};
  return kMethods;
}

std::optional<RetentionPlan> RetentionPlanOf(const Spec& spec) {
  const Stage* stage = spec.retention();
  if (stage == nullptr) return std::nullopt;
  // What a window leaves behind is known before it is sealed: whole blocks go (SealPlan).
  const bool is_sealed = spec.quantizer() != nullptr || spec.splits_bits();
  if (stage->name == "window" && is_sealed) return std::nullopt;
  const auto methods = RetentionMethods();
  const auto method = std::ranges::find(methods, stage->name, &RetentionMethod::name);
  KVL_CHECK(method != methods.end());
  RetentionPlan plan = method->plan(*stage);
  if (is_sealed && plan.prunes_decode && !plan.merge.has_value()) {
    plan.slack = kSealedSlack;
    plan.interval = std::max(plan.interval, kBlockSize);
  }
  return plan;
}

void KeepWhatIsGenerated(RetentionPlan* plan) {
  plan->prunes_decode = false;
  plan->interval = 0;
}

RetentionPlan PlanWithBudget(const Stage& stage) {
  RetentionPlan plan;
  if (stage.Has("keep")) plan.keep = stage.Number("keep");
  if (stage.Has("budget")) {
    plan.n_kept = stage.Integer("budget");
    plan.of_prompt = stage.Word("budget") == "prompt";
  }
  if (stage.Has("prune")) plan.prunes_runs = stage.Word("prune") == "run";
  if (stage.Has("score")) plan.reads_whole_keys = stage.Word("score") == "exact";
  return plan;
}

}  // namespace kvlathe
