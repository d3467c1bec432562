#include "analysis/statistics/spectrum.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/decompositions.h"

namespace kvlathe {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowMajorF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

Spectrum DecomposeGram(const std::vector<double>& gram, int dim) {
  const SymmetricDecomposition parts = DecomposeSymmetric(gram, dim);
  const Eigen::Map<const Eigen::MatrixXd> eigenvectors(parts.vectors.data(), dim, dim);

  Spectrum spectrum;
  spectrum.singular_values.resize(dim);
  spectrum.vectors.resize(gram.size());
  Eigen::Map<RowMajor> vectors(spectrum.vectors.data(), dim, dim);
  for (int i = 0; i < dim; ++i) {
    const int ascending = dim - 1 - i;
    spectrum.singular_values[i] = std::sqrt(std::max(parts.values[ascending], 0.0));
    const auto column = eigenvectors.col(ascending);
    Eigen::Index largest;
    column.cwiseAbs().maxCoeff(&largest);
    vectors.col(i) = column[largest] < 0 ? Eigen::VectorXd(-column) : Eigen::VectorXd(column);
  }
  return spectrum;
}

double SubspaceOverlap(const std::vector<float>& a, const std::vector<float>& b, int dim,
                       int rank) {
  KVL_CHECK(rank >= 1 && rank <= dim);
  const Eigen::Map<const RowMajorF> basis_a(a.data(), dim, dim);
  const Eigen::Map<const RowMajorF> basis_b(b.data(), dim, dim);
  const Eigen::MatrixXd unit_a = basis_a.leftCols(rank).cast<double>().colwise().normalized();
  const Eigen::MatrixXd unit_b = basis_b.leftCols(rank).cast<double>().colwise().normalized();
  const Eigen::MatrixXd product = unit_a.transpose() * unit_b;
  return product.squaredNorm() / rank;
}

}  // namespace kvlathe
