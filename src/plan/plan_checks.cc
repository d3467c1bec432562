#include "plan/plan_checks.h"

#include <fmt/format.h>

#include <string>

#include "plan/basis_analyses.h"
#include "plan/plan_shard.h"

namespace kvlathe {
namespace {

// Of a model in which some layer has one.
int NarrowestWindow(const ModelFacts& model) {
  int narrowest = 0;
  for (const int window : model.windows) {
    if (window > 0 && (narrowest == 0 || window < narrowest)) narrowest = window;
  }
  return narrowest;
}

}  // namespace

Status CheckOnModel(const ModelFacts& model, const ConsideredParts& parts) {
  const SealPlan* const seal = parts.seal;
  const bool has_window = seal != nullptr && seal->window > 0;
  if (!model.windows.empty() && seal != nullptr && FactsOf(seal->format.codec).has_classes) {
    return Error(StatusCode::kUnimplemented,
                 "classes=3 sorts the entries of a prompt, and the sliding window of {} positions "
                 "gives them back in the order of positions; leave classes out",
                 NarrowestWindow(model));
  }
  if (!model.windows.empty() && (parts.retention != nullptr || has_window)) {
    return Error(StatusCode::kUnimplemented,
                 "entries cannot be dropped from the cache of a model with a sliding window of "
                 "{} positions yet; leave the retention stage out",
                 NarrowestWindow(model));
  }
  const bool merges_as_taught = parts.retention != nullptr && parts.retention->merge.has_value() &&
                                parts.retention->merge->every == 0;
  if (merges_as_taught && !model.has_dmc) {
    return Error(StatusCode::kInvalidArgument,
                 "dmc needs a model that was retrofitted with it (an object 'dmc' in its "
                 "config.json); take pool or another retention stage");
  }
  if (parts.retention != nullptr && parts.retention->sweep.has_value() && model.dms_window == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "dms needs a model that was retrofitted with it (dms_window_size in its "
                 "config.json) or the file of a retrofit beside it (--dms); take h2o or another "
                 "retention stage");
  }
  if (parts.retention != nullptr && parts.retention->repeats_prompt() && model.rope_dim == 0) {
    return Error(StatusCode::kUnimplemented,
                 "the votes of kvzip read a prompt again behind itself, and a model with learned "
                 "positions may have none left there; take snapkv or h2o");
  }
  if (seal != nullptr && FactsOf(seal->format.codec).brings_bases && !model.windows.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "a basis that is found where a prompt ends needs its first blocks to the end, and "
                 "the sliding window of {} positions gives them back; take another basis",
                 NarrowestWindow(model));
  }
  if (model.scores_are_absolute && model.rope_dim == 0 && FactsOf(parts.keys).are_mapped) {
    return Error(
        StatusCode::kUnimplemented,
        "the model has sink logits or a cap of scores and learned positions: its biases of "
        "keys take up what a basis takes off keys, and attention cannot give it back; take "
        "a spec without a basis");
  }
  if (JoinsValues(parts.keys) && 2 * model.head_dim > kMaxRowRank) {
    return Error(StatusCode::kUnimplemented,
                 "maps=joint makes one row of a key and its value, of {} channels here, and rows "
                 "have {} at most; leave maps out",
                 2 * model.head_dim, kMaxRowRank);
  }
  const bool has_codes_before_rope = seal != nullptr && seal->format.seals_keys_before_rope();
  if ((TurnWhenRead(parts.keys) || has_codes_before_rope) && model.rope_dim % 4 != 0) {
    return Error(StatusCode::kUnimplemented,
                 "keys of which {} channels rotate cannot be stored from before RoPE, as {} does, "
                 "only multiples of 4; choose another",
                 model.rope_dim,
                 TurnWhenRead(parts.keys) ? "a basis of latents" : "a quantizer with codebooks");
  }
  return OkStatus();
}

Status CheckDivision(const ModelFacts& model) {
  if (model.tensor_ranks > model.n_kv_heads) {
    return Error(StatusCode::kInvalidArgument,
                 "--tp {}: the model has {} KV heads, and each rank takes at least one; choose "
                 "--tp {} or less, and --pp to divide its layers",
                 model.tensor_ranks, model.n_kv_heads, model.n_kv_heads);
  }
  if (model.pipeline_stages > model.n_layers) {
    return Error(StatusCode::kInvalidArgument,
                 "--pp {}: the model has {} layers, and each stage takes at least one; choose --pp "
                 "{} or less",
                 model.pipeline_stages, model.n_layers, model.n_layers);
  }
  return OkStatus();
}

namespace {

// What --tp makes of the KV heads of a layer.
std::string Division(const ModelFacts& model) {
  const Range most = DivideHeads(model.n_kv_heads, model.tensor_ranks).front();
  const int64_t n_most = most.end - most.begin;
  const bool is_even = model.n_kv_heads % model.tensor_ranks == 0;
  return fmt::format(
      "--tp {} gives ranks {} of {}", model.tensor_ranks,
      is_even ? fmt::format("{}", n_most) : fmt::format("{} or {}", n_most, n_most - 1),
      model.n_kv_heads);
}

// Groups of n heads of which a rank would have to have a part.
bool AreDivided(int n, const ModelFacts& model) {
  return CommonHeads(model.n_kv_heads, model.tensor_ranks) % n != 0;
}

Status RefuseMaps(const Spec& spec, const ModelFacts& model, int n) {
  if (spec.basis_as<LatheOptions>()->joins_values) {
    return Error(StatusCode::kInvalidArgument,
                 "maps=joint makes one row of the keys and values of {} KV heads, for whose "
                 "moments the calibration is made, and {}; leave maps out",
                 n, Division(model));
  }
  return Error(StatusCode::kInvalidArgument,
               "heads=joint has one map for {} KV heads, and {}; take heads=auto, which joins "
               "heads of one rank, or heads=own",
               n, Division(model));
}

Status RefuseLatents(const ModelFacts& model, int n) {
  return Error(StatusCode::kInvalidArgument,
               "palu(group={}) has latents of {} KV heads, and {}; take group=1, or a --tp "
               "that gives ranks whole groups",
               n, n, Division(model));
}

Status RefuseScales(const Spec& spec, const ModelFacts& model) {
  const auto* const kcvt = spec.quantizer_as<KcvtOptions>();
  const int bits = kcvt != nullptr ? kcvt->bits : spec.quantizer_as<KvquantOptions>()->bits;
  return Error(StatusCode::kInvalidArgument,
               "{} gives a token of V one scale in all heads of a layer, and {}; take "
               "kivi(bits={},group=64){}, or token, int8, q8_0, q4_0 or mxfp4",
               spec.NameOf(Axis::kQuantizer), Division(model), bits,
               spec.lowrank() != nullptr ? "+lowrank" : "");
}

Status RefuseExactEntries(const ModelFacts& model) {
  return Error(StatusCode::kInvalidArgument,
               "sparse keeps the outermost values of a token over all heads of a layer, and {}; "
               "leave sparse out: gear-l in place of gear, kivi(group=64) in place of "
               "outlier-aware",
               Division(model));
}

Status RefuseVotes(const Spec& spec, const ModelFacts& model) {
  return Error(StatusCode::kInvalidArgument,
               "{} keeps in all heads of a layer the entries that have the votes of all, and {}; "
               "take heads=own",
               spec.NameOf(Axis::kRetention), Division(model));
}

}  // namespace

Status CheckShards(const Spec& spec, const ModelFacts& model) {
  const PlanParts all = PartsOf(spec);
  const bool is_divided = model.tensor_ranks > 1 || model.pipeline_stages > 1;
  if (is_divided && all.retention.has_value() && all.retention->joins_heads) {
    return Error(StatusCode::kInvalidArgument,
                 "with heads=joint {} compares the votes of all heads of all layers, and here "
                 "several ranks have some each; take heads=own",
                 spec.NameOf(Axis::kRetention));
  }
  if (model.tensor_ranks == 1) return OkStatus();
  const Keys keys = KeysOf(spec, model);
  const PlanParts& parts = all;
  const HeadTies ties = TiesOf(parts.seal.has_value() ? &*parts.seal : nullptr,
                               parts.retention.has_value() ? &*parts.retention : nullptr);
  if (AreDivided(HeadsPerMap(keys), model)) return RefuseMaps(spec, model, HeadsPerMap(keys));
  if (AreDivided(HeadsPerLatent(keys), model)) return RefuseLatents(model, HeadsPerLatent(keys));
  if (ties.by_scales) return RefuseScales(spec, model);
  if (ties.by_exact_entries) return RefuseExactEntries(model);
  if (ties.by_votes) return RefuseVotes(spec, model);
  return OkStatus();
}

}  // namespace kvlathe
