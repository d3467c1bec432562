// A method of the quantizer axis says which codec of src/format it takes, and what shares a scale.
// Methods are registered in kv/spec/spec_table.cc; sealing makes the codes (docs/quantization.md).
#pragma once

#include <optional>

#include "kv/cache_layout.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// How a cache of this spec is sealed; nothing without a quantizer. The spec is supported. Under
// retention the prompt is one run, where entries are dropped until it ends.
std::optional<SealPlan> SealPlanOf(const Spec& spec);

// What shares a scale, for both sides, and the share of exact entries of a quantizer that has some
// of its own; the residual axis adds its own.

// Per-token groups (FlexGen; docs/methods/token.md): `group` channels of a token of a head share a
// scale.
PackedFormat FormatOf(const TokenOptions& options);
// KCVT (GEAR, arXiv 2403.05527; docs/methods/kcvt.md): a scale per channel of K over the run, and
// one per token of V over all heads.
PackedFormat FormatOf(const KcvtOptions& options);
// KIVI (arXiv 2402.02750; docs/methods/kivi.md): `group` tokens of a channel of K, `group` channels
// of a token of V.
PackedFormat FormatOf(const KiviOptions& options);
// KVarN (arXiv 2606.03458; docs/methods/kvarn.md): rows of a tile balanced over tokens and
// channels, then a scale per channel of K and per token of V.
PackedFormat FormatOf(const KvarnOptions& options);
// KVQuant (arXiv 2401.18079; docs/methods/kvquant.md): codebooks per layer, K with ranges of the
// model per channel, V with ranges per token over all heads, outliers kept exactly.
PackedFormat FormatOf(const KvquantOptions& options, bool keys_before_rope);
// TurboQuant (arXiv 2504.19874; docs/methods/turboquant.md): codes of levels of a normal number
// under a scale per token and head; of K with signs of residuals, if asked for.
PackedFormat FormatOf(const TurboquantOptions& options);
inline PackedFormat FormatOf(const FixedCodesOptions& options) { return options.format; }

}  // namespace kvlathe
