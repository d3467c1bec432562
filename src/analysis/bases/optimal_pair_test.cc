#include "analysis/bases/optimal_pair.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analysis/bases/fdc_reference.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kDim = 12;

Matrix RandomRows(Random* random, int n_rows, int n_live, double decay) {
  Matrix mixing(n_live, std::vector<double>(kDim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  Matrix rows(n_rows, std::vector<double>(kDim, 0.0));
  for (auto& row : rows) {
    for (int i = 0; i < n_live; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i);
      for (int j = 0; j < kDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

std::vector<double> GramOfRows(const Matrix& rows) {
  std::vector<double> gram(kDim * kDim, 0.0);
  for (const auto& row : rows) {
    for (int i = 0; i < kDim; ++i) {
      for (int j = 0; j < kDim; ++j) gram[i * kDim + j] += row[i] * row[j];
    }
  }
  return gram;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Of every row pair: x^T y.
Matrix Product(const Matrix& x, const Matrix& y) {
  Matrix product;
  for (const auto& row : x) {
    product.emplace_back();
    for (const auto& other : y) product.back().push_back(Dot(row, other));
  }
  return product;
}

std::vector<double> Compressed(const std::vector<double>& row, const std::vector<double>& map,
                               int rank) {
  std::vector<double> y(rank, 0.0);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < rank; ++j) y[j] += row[i] * map[i * kDim + j];
  }
  return y;
}

// ||X Y^T - (X D)(Y E)^T||^2 from the rows themselves.
double SquaredError(const Matrix& x, const Matrix& y, const OptimalPair& pair, int rank) {
  double error = 0;
  for (const auto& row : x) {
    const std::vector<double> left = Compressed(row, pair.left, rank);
    for (const auto& other : y) {
      const double lost = Dot(row, other) - Dot(left, Compressed(other, pair.right, rank));
      error += lost * lost;
    }
  }
  return error;
}

TEST(OptimalPairTest, LosesWhatTheSvdOfTheProductLoses) {
  Random random(3);
  const Matrix x = RandomRows(&random, 30, kDim, 0.3), y = RandomRows(&random, 20, kDim, 0.1);
  const OptimalPair pair = DecomposePair(GramOfRows(x), GramOfRows(y), kDim);
  // The product of the rows, decomposed as it stands: its SVD is the least error of any map
  // (Eckart-Young).
  const reference::Svd svd = reference::DecomposeStacked(Product(x, y));
  for (int rank = 0; rank < kDim; ++rank) {
    double least = 0;
    for (int i = rank; i < kDim; ++i) least += std::pow(svd.singular_values[i], 2);
    EXPECT_NEAR(SquaredError(x, y, pair, rank), least, 1e-3 * least) << rank;
    EXPECT_NEAR(pair.singular_values[rank], svd.singular_values[rank],
                1e-3 * svd.singular_values[rank] + 1e-5 * svd.singular_values[0]);
  }
}

TEST(OptimalPairTest, FullRankIsTheIdentityAndBothSidesHaveTheGramOfTheSingularValues) {
  Random random(4);
  const Matrix x = RandomRows(&random, 30, kDim, 0.3), y = RandomRows(&random, 20, kDim, 0.2);
  const OptimalPair pair = DecomposePair(GramOfRows(x), GramOfRows(y), kDim);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      double product = 0;
      for (int r = 0; r < kDim; ++r) product += pair.left[i * kDim + r] * pair.right[j * kDim + r];
      EXPECT_NEAR(product, i == j, 1e-9);
      double left = 0, right = 0;
      for (const auto& row : x) {
        const auto c = Compressed(row, pair.left, kDim);
        left += c[i] * c[j];
      }
      for (const auto& row : y) {
        const auto c = Compressed(row, pair.right, kDim);
        right += c[i] * c[j];
      }
      const double expected = i == j ? pair.singular_values[i] : 0;
      EXPECT_NEAR(left, expected, 1e-3 * pair.singular_values[0]);
      EXPECT_NEAR(right, expected, 1e-3 * pair.singular_values[0]);
    }
  }
}

TEST(OptimalPairTest, RowsThatDoNotSpanTheSpaceKeepTheMapsBounded) {
  Random random(5);
  const Matrix x = RandomRows(&random, 30, kDim / 2, 0.1), y = RandomRows(&random, 20, kDim, 0.1);
  const Matrix nothing(1, std::vector<double>(kDim, 0.0));
  for (const auto& [left, right] :
       {std::pair(x, y), std::pair(y, x), std::pair(x, nothing), std::pair(nothing, nothing)}) {
    const OptimalPair pair = DecomposePair(GramOfRows(left), GramOfRows(right), kDim);
    for (const double value : pair.left) EXPECT_LT(std::abs(value), 1e3);
    for (const double value : pair.right) EXPECT_LT(std::abs(value), 1e3);
    const double whole = Dot(GramOfRows(left), GramOfRows(right));  // ||X Y^T||^2
    EXPECT_LE(SquaredError(left, right, pair, kDim / 2), 1e-4 * whole + 1e-12);
  }
}

}  // namespace
}  // namespace kvlathe
