// These are the literal trellis codes of lathe's sealed blocks, in double and plain loops, for
// tests (src/format/split_bits/unit_codes.h, seal_trellis_kernels.h), sharing no code with the
// engine.
#pragma once

#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

// Whether codes of so many bits stand for paths where tokens have scales.
bool HasPaths(int bits);

// The share of a unit deviation that codes lose, and the value that is read in place of the one
// that sealing looked for: larger, for what codes shrink.
double UnitLoss(int bits, bool has_token_scales);
double ReadInPlaceOf(int bits, double sought, bool has_token_scales);

// Channels [first, first + n) of 64 rows of K or of V, which are sealed as one segment of codes.
struct PathSegment {
  bool is_key = false;
  int bits = 1;
  int first = 0, n = 0;
};

// Replaces these channels of rows [begin, begin + 64) by what their codes stand for; scales[i] is
// that of row begin + i.
void EncodePaths(const PathSegment& segment, size_t begin, const std::vector<double>& scales,
                 Matrix* rows);

}  // namespace kvlathe::testing
