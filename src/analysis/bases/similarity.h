// Rotations of two calibrations are compared by what one loses of the other's text: singular
// vectors have no sign and turn freely where singular values are equal, so their elements say
// little (ZACK, arXiv 2408.04107, Tables 4 and 5, compares those; they are here beside it).
#pragma once

#include <vector>

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// Of the rotations of queries with keys, or of values with the output weights. "Energy" are the
// squares of the rows that a rotation was found for.
struct RotationSimilarity {
  // Energy of the other text in the first r directions of this one, over that in the first r of its
  // own: at most 1. Over all heads, r the rank of each.
  double kept = 0;
  // Energy of the other text behind the first r directions of this one, over that behind the first
  // r of its own: at least 1, and 1 where nothing is behind either.
  double lost = 1;
  // Mean squared cosine between the spaces of the first r directions, over heads.
  double overlap = 0;
  // Mean of |R - R_other| over all elements, columns with the signs that agree.
  double element_difference = 0;
};

struct BasisSimilarity {
  RotationSimilarity qk, v;
};

// Both analyses are of one model and of one method whose maps are rotations of the rows that their
// spectra are of (fdc, zack); `ranks` are those of the heads. kInvalidArgument where shapes differ
// or a map is no rotation.
StatusOr<BasisSimilarity> CompareRotations(const BasisAnalysis& basis, const BasisAnalysis& other,
                                           const std::vector<HeadRanks>& ranks);

}  // namespace kvlathe
