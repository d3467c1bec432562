#include "tensor/decompositions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kDim = 40;  // large enough for the methods that work on parts of a matrix

std::vector<double> DrawMatrix(uint64_t seed) {
  Random random(seed);
  std::vector<double> matrix(kDim * kDim);
  for (double& x : matrix) x = random.Uniform() - 0.5;
  return matrix;
}

// Entry (i, j) of left diag(values) right^T, of column-major matrices.
double Product(const std::vector<double>& left, const std::vector<double>& values,
               const std::vector<double>& right, int i, int j) {
  double sum = 0;
  for (int k = 0; k < kDim; ++k) sum += left[k * kDim + i] * values[k] * right[k * kDim + j];
  return sum;
}

TEST(DecompositionsTest, SymmetricMatrixIsTheProductOfItsPartsInAscendingOrder) {
  std::vector<double> matrix = DrawMatrix(1);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < i; ++j) matrix[j * kDim + i] = matrix[i * kDim + j];
  }
  const SymmetricDecomposition parts = DecomposeSymmetric(matrix, kDim);
  EXPECT_TRUE(std::is_sorted(parts.values.begin(), parts.values.end()));
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      ASSERT_NEAR(Product(parts.vectors, parts.values, parts.vectors, i, j), matrix[i * kDim + j],
                  1e-12);
    }
  }
}

TEST(DecompositionsTest, SquareMatrixIsTheProductOfItsPartsInDescendingOrder) {
  const std::vector<double> matrix = DrawMatrix(2);
  const SingularValueDecomposition parts = DecomposeSquare(matrix, kDim);
  EXPECT_TRUE(std::is_sorted(parts.values.rbegin(), parts.values.rend()));
  EXPECT_GE(parts.values.back(), 0);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      ASSERT_NEAR(Product(parts.u, parts.values, parts.v, i, j), matrix[j * kDim + i], 1e-12);
    }
  }
}

}  // namespace
}  // namespace kvlathe
