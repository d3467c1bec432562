// TurboQuant's quantizer as its paper has it (arXiv 2504.19874, algorithms 1 and 2), of rows that
// were turned already, in double and plain loops, for tests (docs/methods/turboquant.md).
#pragma once

#include <vector>

namespace kvlathe::testing {

// What the codes of a row stand for: numbers of steps. A scale, which is stored in F16, is what 64
// of them are worth.
struct ReferenceLevels {
  std::vector<int> positive;  // ascending; the others are the negatives
  double step = 0;            // in standard deviations
};

struct ReferenceSphere {
  ReferenceLevels keys, values;
  bool keys_have_signs = false;
  bool corrects_norms = true;
};

// Replaces a row by what its codes give back.
void CodeBySphere(const ReferenceLevels& levels, bool corrects_norms, std::vector<double>* row);
// Then adds what the signs of the residual give back. `row` is the row as it was, `coded` what its
// codes give back; their number of channels is a power of two.
void AddSignsOfResidual(const std::vector<double>& row, std::vector<double>* coded);

}  // namespace kvlathe::testing
