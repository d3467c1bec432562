#include "model/plan_checks.h"

namespace kvlathe {
namespace {

// Of a model in which some layer has one.
int NarrowestWindow(const ModelConfig& c) {
  int narrowest = 0;
  for (const AttentionKind& kind : c.attention.kinds) {
    if (kind.window > 0 && (narrowest == 0 || kind.window < narrowest)) narrowest = kind.window;
  }
  return narrowest;
}

}  // namespace

Status CheckPlans(const ModelConfig& c, const CachePlans& plans) {
  const SealPlan* const seal = plans.seal;
  const bool has_window = seal != nullptr && seal->window > 0;
  if (c.attention.HasWindow() && (plans.retention != nullptr || has_window)) {
    return Error(StatusCode::kUnimplemented,
                 "entries cannot be dropped from the cache of a model with a sliding window of "
                 "{} positions yet; leave the retention stage out",
                 NarrowestWindow(c));
  }
  const bool merges_as_taught = plans.retention != nullptr && plans.retention->merge.has_value() &&
                                plans.retention->merge->every == 0;
  if (merges_as_taught && !c.dmc.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "dmc needs a model that was retrofitted with it (an object 'dmc' in its "
                 "config.json); take pool or another retention stage");
  }
  if (seal != nullptr && seal->format.is_rotated && c.attention.HasWindow()) {
    return Error(StatusCode::kUnimplemented,
                 "a basis that is found where a prompt ends needs its first blocks to the end, and "
                 "the sliding window of {} positions gives them back; take another basis",
                 NarrowestWindow(c));
  }
  const bool has_codes_before_rope =
      seal != nullptr && seal->format.k.has_codebook && seal->format.keys_before_rope;
  if ((plans.has_latent_keys || has_codes_before_rope) && c.rope_dim() % 4 != 0) {
    return Error(StatusCode::kUnimplemented,
                 "keys of which {} channels rotate cannot be stored from before RoPE, as {} does, "
                 "only multiples of 4; choose another",
                 c.rope_dim(),
                 plans.has_latent_keys ? "a basis of latents" : "a quantizer with codebooks");
  }
  return OkStatus();
}

}  // namespace kvlathe
