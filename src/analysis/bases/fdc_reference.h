// This transcribes the equations of docs/methods/fdc.md and the ranks of docs/basis.md in double,
// with plain loops. It shares no code with the implementation: the stacked matrix is decomposed
// itself, never its Gram matrix, and every candidate eta is tried.
#pragma once

#include <vector>

namespace kvlathe::reference {

using Matrix = std::vector<std::vector<double>>;  // rows

struct Svd {
  std::vector<double> singular_values;  // descending
  Matrix right;                         // right[i]: the i-th right singular vector
};

// One-sided Jacobi: turns pairs of columns until all are orthogonal.
Svd DecomposeStacked(Matrix m);

// "smallest width r such that the removed mass is within eta", rounded up and clamped.
int RankOf(const std::vector<double>& singular_values, double eta, int multiple);

struct Choice {
  std::vector<int> ranks;  // one per pair
  double rate = 0;
};

// The largest overall rate not above `target` over every eta at which anything can change.
Choice ChooseRanks(const std::vector<std::vector<double>>& pairs, double target, int multiple);

}  // namespace kvlathe::reference
