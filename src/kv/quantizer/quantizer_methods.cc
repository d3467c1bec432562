#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {
namespace {

// From this ratio on, 8-bit codes of the newest block lose less than what their bytes give to the
// other blocks gains: measured on a model of 6 million parameters
// (docs/decisions/lathe-newest-block-at-8-bits.md).
constexpr double kMinCodedRatio = 5;

bool CodesOpenRows(const Spec& spec, const LatheOptions& lathe) {
  if (spec.retention_facts().moves_rows) return false;
  if (lathe.joins_values) return true;
  if (lathe.open != LatheOptions::OpenRows::kAuto) {
    return lathe.open == LatheOptions::OpenRows::k8;
  }
  return lathe.ranks.has_ratio() && lathe.ranks.value >= kMinCodedRatio;
}

PackedFormat FormatIn(const Spec& /*spec*/, const auto& options) { return FormatOf(options); }
// A basis mixes channels behind RoPE; without one K has its steady ranges before it.
PackedFormat FormatIn(const Spec& spec, const KvquantOptions& options) {
  return FormatOf(options, /*keys_before_rope=*/spec.basis() == nullptr);
}

// The format, and what else each kind of sealing decides by itself.
std::optional<SealPlan> BeginPlan(const Spec& /*spec*/, const SealNothing& /*sealing*/) {
  return std::nullopt;
}
std::optional<SealPlan> BeginPlan(const Spec& spec, const SealByQuantizer& sealing) {
  return SealPlan{
      .format = std::visit([&](const auto& o) { return FormatIn(spec, o); }, *sealing.quantizer)};
}
std::optional<SealPlan> BeginPlan(const Spec& spec, const SealBySplitBits& sealing) {
  const LatheOptions& lathe = *sealing.lathe;
  return SealPlan{.format = {.codec = SplitBitsCodec{.unit = lathe.unit,
                                                     .codes_open_rows = CodesOpenRows(spec, lathe),
                                                     .has_classes = lathe.has_classes,
                                                     .has_one_side = lathe.joins_values}},
                  .has_pressed_runs = lathe.under_pressure > 0};
}
std::optional<SealPlan> BeginPlan(const Spec& /*spec*/, const SealByOwnBasis& sealing) {
  return SealPlan{.format = {.codec = RotatedCodec{.kept_share = sealing.kept_share,
                                                   .gathers_queries = sealing.gathers_queries}},
                  .prompt_run = 0,
                  .buffer = kBlockSize};
}

void AddResidual(const Spec& spec, SealPlan* plan) {
  if (const LowrankOptions* lowrank = spec.lowrank(); lowrank != nullptr) {
    plan->format.prompt_rank = lowrank->prompt_rank;
    plan->format.decode_rank = lowrank->decode_rank;
    plan->repaired_share = lowrank->repaired_share;
    plan->power_loops = lowrank->power_loops;
  }
  if (spec.sparse() != nullptr) plan->format.sparse_share += spec.sparse()->share;
}

}  // namespace

std::optional<SealPlan> SealPlanOf(const Spec& spec) {
  std::optional<SealPlan> begun =
      std::visit([&](const auto& kind) { return BeginPlan(spec, kind); }, spec.sealing());
  const RunOptions* const runs = spec.runs();
  if (!begun.has_value() || runs == nullptr) return begun;
  SealPlan& plan = *begun;
  const RetentionFacts retention = spec.retention_facts();
  plan.window = retention.window;
  // The prompt is sealed at its end where entries are dropped or sorted until then.
  plan.prompt_run =
      retention.ends_prompt_as_run || FactsOf(plan.format.codec).has_classes ? 0 : runs->prompt_run;
  plan.buffer = runs->buffer;
  plan.newest = runs->newest;
  constexpr int kMostOfAuto = 4096;
  const bool grows = runs->newest_grows && !retention.moves_rows;
  plan.most_newest = grows ? kMostOfAuto : plan.newest;
  AddResidual(spec, &plan);
  return begun;
}

}  // namespace kvlathe
