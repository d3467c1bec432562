// A product whose factors are known by their Gram matrices has a best low-rank form, which
// OptimalPair finds.
#pragma once

#include <vector>

namespace kvlathe {

// Square maps D and E: of all maps to r numbers, their first r columns minimise the Frobenius norm
// of X Y^T - (X D)(Y E)^T, and its square is the sum of s_i^2 beyond r.
struct OptimalPair {
  std::vector<double> singular_values;  // s of X Y^T, [dim] descending
  std::vector<double> left;             // D [dim, dim] row-major
  std::vector<double> right;            // E
};

// From X^T X and Y^T Y [dim, dim], finite. With X^T X = A A^T, Y^T Y = B B^T and the SVD
// A^T B = U S W^T: D = B W S^-1/2, E = A U S^-1/2, and D E^T = I at full rank. Both (X D) and (Y E)
// have the Gram matrix S: columns share what a common quantisation step would cost them.
// Directions in which a factor has nothing (fewer rows than dim, dead channels) count kPairRidge of
// its mean square, so that no map grows without bounds; s contains that. O(dim^3).
inline constexpr double kPairRidge = 1e-6;
OptimalPair DecomposePair(const std::vector<double>& left_gram,
                          const std::vector<double>& right_gram, int dim);

}  // namespace kvlathe
