// Blocks that are still being filled, with 8-bit codes in place of rows
// (BlockShape::has_coded_rows): those of rows that come in units of their channels' deviations
// (unit_codes.h), in the places that a sealed block of channels of 8 bits has (packed_layout.h). So
// attention reads them as one more run, and a position takes half the bytes of Bf16 while it waits
// for its run to be sealed.
#pragma once

#include <cstddef>

#include "format/coded_rows.h"
#include "kernels/cpu/attend/attend.h"

namespace kvlathe {

// The nearest codes; what lies beyond the last one takes it. False when a row holds NaN or
// infinity, for which there is no code; what was written is undefined then.
bool AppendCodedRows(const AppendParams& params);

// K or V of a block of `rank` channels, in the order of a plain block, in units. 0 lies on a
// boundary of all fewer bits (UnitBoundaries), so it gets a sign: a little more than 0 at even
// tokens, a little less at odd ones, or sealing would move the mean of values, which does not
// average out.
void ExpandCodedKeys(const std::byte* keys, int rank, float* to);
void ExpandCodedValues(const std::byte* values, int rank, float* to);

}  // namespace kvlathe
