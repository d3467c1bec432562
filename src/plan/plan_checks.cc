#include "plan/plan_checks.h"

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
  if (seal != nullptr && FactsOf(seal->format.codec).brings_bases && !model.windows.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "a basis that is found where a prompt ends needs its first blocks to the end, and "
                 "the sliding window of {} positions gives them back; take another basis",
                 NarrowestWindow(model));
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

}  // namespace kvlathe
