// Dense matrices are decomposed here in double precision. Eigen's templates for them take longer to
// compile than any other source, so this is the one place that instantiates them.
#pragma once

#include <span>
#include <vector>

namespace kvlathe {

// matrix = vectors diag(values) vectors^T.
struct SymmetricDecomposition {
  std::vector<double> values;  // [dim], ascending
  std::vector<double>
      vectors;  // [dim, dim] column-major: column i belongs to value i, of unit length
};

// `matrix` [dim, dim] is symmetric and finite; of a row-major matrix the lower triangle is read.
// O(dim^3).
SymmetricDecomposition DecomposeSymmetric(std::span<const double> matrix, int dim);

// Whether matrix + ridge I has positive eigenvalues alone: whether it has a Cholesky factor.
// `matrix` as above. O(dim^3), a hundredth of what the eigenvalues take.
bool IsPositive(std::span<const double> matrix, int dim, double ridge);

// matrix = u diag(values) v^T.
struct SingularValueDecomposition {
  std::vector<double> values;  // [dim], descending
  std::vector<double> u;       // [dim, dim] column-major, orthogonal
  std::vector<double> v;       // [dim, dim] column-major, orthogonal
};

// `matrix` [dim, dim] is column-major and finite. O(dim^3).
SingularValueDecomposition DecomposeSquare(std::span<const double> matrix, int dim);

// The inverse of `matrix` [dim, dim], row-major; where there is none, numbers that are not finite
// or as large as rounding makes them. O(dim^3).
std::vector<double> InvertSquare(std::span<const double> matrix, int dim);

}  // namespace kvlathe
