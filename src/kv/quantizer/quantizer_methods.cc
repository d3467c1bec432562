#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {
namespace {

// From this ratio on, 8-bit codes of the newest block lose less than what their bytes give to the
// other blocks gains: measured on a model of 6 million parameters
// (docs/decisions/lathe-newest-block-at-8-bits.md).
constexpr double kMinCodedRatio = 5;

// What drops or merges entries moves rows; a window does not.
bool MovesRows(const Spec& spec) {
  return spec.retention() != nullptr && spec.retention_as<WindowOptions>() == nullptr;
}

bool CodesOpenRows(const Spec& spec, const LatheOptions& lathe) {
  if (MovesRows(spec)) return false;
  if (lathe.open != LatheOptions::OpenRows::kAuto) {
    return lathe.open == LatheOptions::OpenRows::k8;
  }
  return lathe.ranks.has_ratio() && lathe.ranks.value >= kMinCodedRatio;
}

// Of a spec that neither quantizes nor splits bits.
std::optional<SealPlan> OnlinePlanOf(const Spec& spec) {
  if (!spec.finds_basis_online()) return std::nullopt;
  const auto* const strawman = spec.basis_as<SvdOnlineOptions>();
  return SealPlan{.format = {.codec = RotatedCodec{}},
                  .prompt_run = 0,
                  .buffer = kBlockSize,
                  .kept_share = strawman != nullptr ? 1 - strawman->rate : 0,
                  .gathers_queries = strawman == nullptr};
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
  const RunOptions* const runs = spec.runs();
  if (runs == nullptr) return OnlinePlanOf(spec);
  SealPlan plan;
  if (spec.splits_bits()) {
    const auto& lathe = *spec.basis_as<LatheOptions>();
    plan.format.codec = SplitBitsCodec{.unit = lathe.unit};
    plan.codes_open_rows = CodesOpenRows(spec, lathe);
  } else {
    plan.format =
        std::visit([](const auto& options) { return FormatOf(options); }, *spec.quantizer());
  }
  if (const auto* window = spec.retention_as<WindowOptions>(); window != nullptr) {
    plan.window = window->size;
  }
  // The prompt is sealed at its end where entries are dropped or sorted until then.
  plan.has_classes = spec.has_classes();
  const bool waits = MovesRows(spec) && spec.retention_as<PoolOptions>() == nullptr;
  plan.prompt_run = waits || plan.has_classes ? 0 : runs->prompt_run;
  plan.buffer = runs->buffer;
  plan.newest = runs->newest;
  constexpr int kMostOfAuto = 4096;
  const bool grows = runs->newest_grows && !MovesRows(spec);
  plan.most_newest = grows ? kMostOfAuto : plan.newest;
  AddResidual(spec, &plan);
  // A basis mixes channels behind RoPE; without one K has its steady ranges before it.
  if (auto* const codebook = std::get_if<CodebookCodec>(&plan.format.codec)) {
    codebook->keys_before_rope = spec.basis() == nullptr;
  }
  return plan;
}

}  // namespace kvlathe
