// The methods of the quantizer axis: which codec of src/format each takes, and what shares a scale.
// They are registered in kv/spec/spec_table.cc; the codes themselves are kernels/cpu/seal/seal.h's.
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
// KVQuant (arXiv 2401.18079; docs/methods/kvquant.md): codebooks per layer, K with ranges of the
// model per channel, V with ranges per token over all heads, outliers kept exactly.
PackedFormat FormatOf(const KvquantOptions& options, bool keys_before_rope);
inline PackedFormat FormatOf(const FixedCodesOptions& options) { return options.format; }

// What their rows of spec_table.cc name. Symmetric, a scale per token and head.
PackedFormat Int8Format();
PackedFormat Q8Format();
PackedFormat Q4Format();
// Codes of 4 bits that stand for the numbers of a table, under a power of two for each kGroup
// channels of a token (format/table_codes/code_table.h).
template <const NamedTable& kTable, int kGroup>
PackedFormat TableFormat() {
  return {.codec = TableCodec{&kTable, kGroup}};
}

}  // namespace kvlathe
