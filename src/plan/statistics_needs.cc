#include "kv/retention/retention_methods.h"
#include "plan/basis_analyses.h"
#include "plan/plan_source.h"

namespace kvlathe {

std::optional<MergePlan> MergingOf(const Spec& spec) {
  const std::optional<RetentionPlan> retention = RetentionPlanOf(spec);
  return retention.has_value() ? retention->merge : std::nullopt;
}

bool CutsAtOnce(const Spec& spec) {
  const auto* const lathe = spec.basis_as<LatheOptions>();
  return lathe != nullptr && lathe->ranks.goal != RankOptions::Goal::kAccuracy &&
         !FactsOf(spec.sealing()).splits_bits;
}

namespace {

// A loss is predicted of text that is held back, which maps have none of; and maps are made of
// gradients through far queries.
std::optional<KeyRows> MapsOf(const Spec& spec) {
  const auto* const lathe = spec.basis_as<LatheOptions>();
  const bool are_enough = lathe != nullptr && !CutsAtOnce(spec) && !lathe->joins_values &&
                          !spec.accuracy().has_value() && !MergingOf(spec).has_value();
  return are_enough ? std::optional(spec.key_rows()) : std::nullopt;
}

}  // namespace

std::optional<StatisticsNeed> BasisNeedOf(const Spec& spec) {
  const BasisMethod* const method = BasisMethodOf(spec);
  if (method == nullptr || spec.basis() == nullptr) return std::nullopt;
  const BasisOptions options =
      BasisOptionsOf(spec, ModelFacts());  // what is read hangs on no model
  return StatisticsNeed{.of_text = method->wants_text,
                        .across_heads = options.heads_per_latent > 1 && options.is_whitened,
                        .gradients = method->wants_gradients,
                        .key_values = options.joins_values,
                        .outputs = method->wants_outputs,
                        .after_rope = !TurnWhenRead(spec.keys()) && !HasFrames(spec.keys()),
                        .maps_of = MapsOf(spec),
                        .merge = MergingOf(spec)};
}

// Without a basis codebooks are those of keys before RoPE, and of queries only the mean squares of
// pairs of channels are read, which RoPE does not change.
std::optional<StatisticsNeed> CodebookNeedOf(const Spec& spec) {
  if (spec.quantizer_as<KvquantOptions>() == nullptr) return std::nullopt;
  return StatisticsNeed{.of_text = true,
                        .gradients = true,
                        .after_rope = spec.basis() != nullptr && !TurnWhenRead(spec.keys()),
                        .merge = MergingOf(spec)};
}

std::vector<StatisticsNeed> StatisticsNeedsOf(const Spec& spec) {
  std::vector<StatisticsNeed> needs;
  for (const std::optional<StatisticsNeed>& need : {BasisNeedOf(spec), CodebookNeedOf(spec)}) {
    if (need.has_value()) needs.push_back(*need);
  }
  return needs;
}

}  // namespace kvlathe
