#include "kv/retention/retention_methods.h"

#include <algorithm>

#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

// A smaller one would seal what stays more often, at an error each time.
constexpr double kSealedSlack = 0.25;

// So many of the last queries of a prompt say which of its entries are attended to.
constexpr int kVotingQueries = 32;

// Every entry stays, with votes by which they are sorted where the prompt ends.
RetentionPlan SortingPlan() {
  RetentionPlan plan = {.votes = RetentionPlan::Votes::kPromptTail,
                        .keep = 1,
                        .n_recent = kVotingQueries,
                        .prunes_runs = false};
  KeepWhatIsGenerated(&plan);
  return plan;
}

}  // namespace

std::optional<RetentionPlan> RetentionPlanOf(const Spec& spec) {
  if (spec.retention() == nullptr && FactsOf(spec.sealing()).has_classes) return SortingPlan();
  if (spec.retention() == nullptr) return std::nullopt;
  // What a window leaves behind is known before it is sealed: whole blocks go (SealPlan).
  const bool is_sealed = spec.runs() != nullptr;
  if (is_sealed && spec.retention_facts().window > 0) return std::nullopt;
  RetentionPlan plan =
      std::visit([](const auto& options) { return PlanOf(options); }, *spec.retention());
  if (is_sealed && plan.prunes_decode && !plan.merge.has_value() && !plan.sweep.has_value()) {
    plan.slack = kSealedSlack;
    plan.interval = std::max(plan.interval, kBlockSize);
  }
  return plan;
}

void KeepWhatIsGenerated(RetentionPlan* plan) {
  plan->prunes_decode = false;
  plan->interval = 0;
}

RetentionPlan PlanWithBudget(const BudgetOptions& budget) {
  RetentionPlan plan;
  plan.keep = budget.keep;
  plan.n_kept = budget.n_kept;
  plan.of_prompt = budget.of_prompt;
  plan.prunes_runs = budget.prunes_runs;
  plan.reads_whole_keys = budget.reads_whole_keys;
  return plan;
}

}  // namespace kvlathe
