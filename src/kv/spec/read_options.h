// Each function makes the typed options of a stage from its values, and is the `read` of a
// registration row. Nothing else looks a key up by its name.
#pragma once

#include "kv/spec/spec_table.h"

namespace kvlathe {

StageOptions ReadZack(const KeyValues& values);
StageOptions ReadFdc(const KeyValues& values);
StageOptions ReadPalu(const KeyValues& values);
StageOptions ReadEigen(const KeyValues& values);
StageOptions ReadSpectral(const KeyValues& values);
StageOptions ReadSvdOnline(const KeyValues& values);
StageOptions ReadLathe(const KeyValues& values);
StageOptions ReadH2o(const KeyValues& values);
StageOptions ReadMas(const KeyValues& values);
StageOptions ReadTova(const KeyValues& values);
StageOptions ReadKeyformer(const KeyValues& values);
StageOptions ReadSnapkv(const KeyValues& values);
StageOptions ReadKvzip(const KeyValues& values);
StageOptions ReadWindow(const KeyValues& values);
StageOptions ReadPool(const KeyValues& values);
StageOptions ReadDmc(const KeyValues& values);
StageOptions ReadDms(const KeyValues& values);
StageOptions ReadToken(const KeyValues& values);
StageOptions ReadKcvt(const KeyValues& values);
StageOptions ReadKivi(const KeyValues& values);
StageOptions ReadKvarn(const KeyValues& values);
StageOptions ReadKvquant(const KeyValues& values);
StageOptions ReadTurboquant(const KeyValues& values);
StageOptions ReadFixedCodes(const KeyValues& values, const PackedFormat& format, MixingRule rule);
// The `read` of a quantizer whose codes leave nothing to choose.
template <PackedFormat (*kFormat)(), MixingRule kRule = MixingRule::kWhole>
StageOptions ReadFixed(const KeyValues& values) {
  return ReadFixedCodes(values, kFormat(), kRule);
}
StageOptions ReadLowrank(const KeyValues& values);
StageOptions ReadSparse(const KeyValues& values);

}  // namespace kvlathe
