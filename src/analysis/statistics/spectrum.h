// Every method of the basis axis starts from the spectrum of a Gram matrix.
#pragma once

#include <vector>

namespace kvlathe {

// C = X^T X has the eigenvalues sigma^2 and the eigenvectors of X's right singular vectors.
struct Spectrum {
  std::vector<double> singular_values;  // [dim], sqrt of the eigenvalues, descending
  // [dim, dim] row-major, orthogonal; column i belongs to singular value i, and its entry of
  // largest magnitude is positive.
  std::vector<double> vectors;
};

// `gram` [dim, dim] is symmetric, positive semi-definite up to rounding, and finite; negative
// eigenvalues count as 0. O(dim^3): about 2 ms at dim = 128.
Spectrum DecomposeGram(const std::vector<double>& gram, int dim);

// How far the spaces of the first `rank` columns of two [dim, dim] row-major matrices, orthogonal
// and of any length, agree: the mean squared singular value of R_a^T R_b, in [0, 1]. Unlike a
// comparison by element, it ignores signs and turns inside equal singular values.
double SubspaceOverlap(const std::vector<float>& a, const std::vector<float>& b, int dim, int rank);

}  // namespace kvlathe
