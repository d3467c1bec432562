#include "analysis/bases/optimal_pair.h"

#include <Eigen/Core>
#include <cmath>
#include <utility>

#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"
#include "base/check.h"
#include "tensor/decompositions.h"

namespace kvlathe {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A with A A^T = gram + ridge I.
Eigen::MatrixXd RootOf(const std::vector<double>& gram, int dim) {
  const Spectrum spectrum = DecomposeGram(gram, dim);
  const double trace = TraceOf(gram, dim);
  const double ridge = trace > 0 ? kPairRidge * trace / dim : 1.0;
  Eigen::MatrixXd root = Eigen::Map<const RowMajor>(spectrum.vectors.data(), dim, dim);
  for (int i = 0; i < dim; ++i) {
    const double sigma = spectrum.singular_values[i];
    root.col(i) *= std::sqrt(sigma * sigma + ridge);
  }
  return root;
}

// Row-major.
std::vector<double> Flatten(const Eigen::MatrixXd& from) {
  std::vector<double> flat(from.size());
  Eigen::Map<RowMajor>(flat.data(), from.rows(), from.cols()) = from;
  return flat;
}

}  // namespace

OptimalPair DecomposePair(const std::vector<double>& left_gram,
                          const std::vector<double>& right_gram, int dim) {
  KVL_CHECK_EQ(std::ssize(left_gram), int64_t{dim} * dim);
  KVL_CHECK_EQ(std::ssize(right_gram), int64_t{dim} * dim);
  const Eigen::MatrixXd left_root = RootOf(left_gram, dim), right_root = RootOf(right_gram, dim);
  const Eigen::MatrixXd product = left_root.transpose() * right_root;
  SingularValueDecomposition svd =
      DecomposeSquare({product.data(), static_cast<size_t>(product.size())}, dim);
  const Eigen::MatrixXd u = Eigen::Map<const Eigen::MatrixXd>(svd.u.data(), dim, dim);
  const Eigen::MatrixXd v = Eigen::Map<const Eigen::MatrixXd>(svd.v.data(), dim, dim);
  const Eigen::VectorXd scale =
      Eigen::Map<const Eigen::VectorXd>(svd.values.data(), dim).cwiseSqrt().cwiseInverse();
  OptimalPair pair;
  pair.singular_values = std::move(svd.values);
  pair.left = Flatten(right_root * v * scale.asDiagonal());
  pair.right = Flatten(left_root * u * scale.asDiagonal());
  return pair;
}

}  // namespace kvlathe
