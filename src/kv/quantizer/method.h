// The methods of the quantizer axis: what shares a scale, for K and for V. One function each, one
// file each; the codes themselves are kernels/cpu/seal/seal.h's.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "kv/cache_layout.h"
#include "kv/spec/spec.h"

namespace kvlathe {

struct QuantizerMethod {
  std::string_view name;  // as in a spec
  // Sides, and the share of a quantizer that has exact entries of its own; the residual axis adds
  // its own.
  PackedFormat (*format)(const Stage& stage);
};

std::span<const QuantizerMethod> QuantizerMethods();

// How a cache of this spec is sealed; nothing without a quantizer. The spec is supported. Under
// retention the prompt is one run, where entries are dropped until it ends.
std::optional<SealPlan> SealPlanOf(const Spec& spec);

// Per-token groups (FlexGen; docs/methods/token.md): `group` channels of a token of a head share a
// scale.
PackedFormat TokenFormat(const Stage& stage);
// KCVT (GEAR, arXiv 2403.05527; docs/methods/kcvt.md): a scale per channel of K over the run, and
// one per token of V over all heads.
PackedFormat KcvtFormat(const Stage& stage);
// KIVI (arXiv 2402.02750; docs/methods/kivi.md): `group` tokens of a channel of K, `group` channels
// of a token of V.
PackedFormat KiviFormat(const Stage& stage);
// KVQuant (arXiv 2401.18079; docs/methods/kvquant.md): codebooks per layer, K with ranges of the
// model per channel, V with ranges per token over all heads, outliers kept exactly.
PackedFormat KvquantFormat(const Stage& stage);
// Symmetric, a scale per token and head.
PackedFormat Int8Format(const Stage& stage);
PackedFormat Q8Format(const Stage& stage);
PackedFormat Q4Format(const Stage& stage);

}  // namespace kvlathe
