#include "kv/quantizer/method.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

std::span<const QuantizerMethod> QuantizerMethods() {
  static constexpr QuantizerMethod kMethods[] = {{"token", TokenFormat}, {"kcvt", KcvtFormat},
                                                 {"kivi", KiviFormat},   {"kvquant", KvquantFormat},
                                                 {"int8", Int8Format},   {"q8_0", Q8Format},
                                                 {"q4_0", Q4Format}};
  return kMethods;
}

namespace {

// From this ratio on, 8-bit codes of the newest block lose less than what their bytes give to the
// other blocks gains: measured on a model of 6 million parameters
// (docs/decisions/lathe-newest-block-at-8-bits.md).
constexpr double kMinCodedRatio = 5;

bool CodesOpenRows(const Stage& stage, const Stage* retention) {
  // What drops or merges entries moves rows.
  if (retention != nullptr && retention->name != "window") return false;
  if (stage.Word("open") != "auto") return stage.Integer("open") == 8;
  return stage.Has("ratio") && stage.Number("ratio") >= kMinCodedRatio;
}

}  // namespace

std::optional<SealPlan> SealPlanOf(const Spec& spec) {
  const Stage* stage = spec.splits_bits() ? spec.basis() : spec.quantizer();
  if (stage == nullptr) {
    if (!spec.finds_basis_online()) return std::nullopt;
    const bool is_strawman = spec.basis()->name == "svd-online";
    return SealPlan{.format = {.is_rotated = true},
                    .prompt_run = 0,
                    .buffer = kBlockSize,
                    .kept_share = is_strawman ? 1 - spec.basis()->Number("rate") : 0,
                    .gathers_queries = !is_strawman};
  }
  SealPlan plan;
  if (spec.splits_bits()) {
    plan.format.splits_bits = true;
    plan.codes_open_rows = CodesOpenRows(*stage, spec.retention());
  } else {
    const auto methods = QuantizerMethods();
    const auto method = std::ranges::find(methods, stage->name, &QuantizerMethod::name);
    KVL_CHECK(method != methods.end());
    plan.format = method->format(*stage);
  }
  const Stage* retention = spec.retention();
  bool waits = stage->Word("run") == "prompt";
  if (retention != nullptr && retention->name == "window") {
    plan.window = retention->Integer("size");
  } else if (retention != nullptr && retention->name != "pool") {
    waits = true;
  }
  plan.prompt_run = waits ? 0 : stage->Integer("run");
  plan.buffer = stage->Integer("buffer");
  plan.newest = stage->Integer("newest");
  if (const Stage* lowrank = spec.lowrank(); lowrank != nullptr) {
    plan.format.prompt_rank = lowrank->Integer("prefill");
    plan.format.decode_rank = lowrank->Integer("decode");
    plan.repaired_share = lowrank->Number("recent");
    plan.power_loops = lowrank->Integer("loops");
  }
  if (const Stage* sparse = spec.sparse(); sparse != nullptr) {
    plan.format.sparse_share += sparse->Number("share");
  }
  // A basis mixes channels behind RoPE; without one K has its steady ranges before it.
  plan.format.keys_before_rope = plan.format.k.has_codebook && spec.basis() == nullptr;
  return plan;
}

}  // namespace kvlathe
