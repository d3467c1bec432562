// Blocks that are still being filled and hold 8-bit codes in place of rows
// (SplitBitsCodec::codes_open_rows). Their rows come in units of the channels' deviations
// (unit_codes.h), and codes have the places of a sealed block whose channels have 8 bits and whose
// tokens have scales (format/split_bits/coded_rows.h). The scale is the least under which no number
// of the row lies beyond the last code. So attention reads these blocks as one more run, and a
// position takes half the bytes of Bf16 while it waits for its run to be sealed.
#pragma once

#include <cstddef>

#include "cpu/kernels/attend/attend.h"
#include "format/split_bits/coded_rows.h"

namespace kvlathe {

// Writes the nearest codes; numbers beyond the last code of the largest scale take that. False when
// a row holds NaN or infinity, for which there is no code, and then what was written is undefined.
bool AppendCodedRows(const AppendParams& params);

// Expand K or V of a block of `rank` channels, whose tokens have these scales, to numbers of units
// in the order of a plain block. 0 lies on a boundary of all codes of fewer bits (UnitBoundaries),
// so it becomes a little more than 0 at even tokens and a little less at odd ones. Otherwise
// sealing would move the mean of values, which attention does not average out.
void ExpandCodedKeys(const std::byte* keys, int rank, const std::byte* scales, float* to);
void ExpandCodedValues(const std::byte* values, int rank, const std::byte* scales, float* to);

}  // namespace kvlathe
