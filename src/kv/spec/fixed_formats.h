// A fixed format is that of a quantizer whose codes leave nothing to choose: its row of
// spec_table.cc names one of these functions.
#pragma once

#include "format/packed_layout.h"

namespace kvlathe {

// Symmetric codes of 8 bits, a scale per token and head (docs/methods/int8.md).
PackedFormat Int8Format();
// The cache types q8_0 and q4_0 of llama.cpp (ggml): blocks of 32 channels of a token with one F16
// scale and no minimum. llama.cpp rounds x / d + 8.5 down where these round x / d + 8 to the
// nearest even code: they differ on ties only.
PackedFormat Q8Format();
PackedFormat Q4Format();
// Codes of 4 bits that stand for the numbers of a table, under a power of two for each kGroup
// channels of a token (format/table_codes/code_table.h).
template <const NamedTable& kTable, int kGroup>
PackedFormat TableFormat() {
  return {.codec = TableCodec{&kTable, kGroup}};
}

}  // namespace kvlathe
