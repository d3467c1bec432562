#include "tensor/decompositions.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/SVD>

#include "base/check.h"

namespace kvlathe {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename Matrix>
std::vector<double> Flatten(const Matrix& from) {
  return {from.data(), from.data() + from.size()};
}

}  // namespace

SymmetricDecomposition DecomposeSymmetric(std::span<const double> matrix, int dim) {
  KVL_CHECK_EQ(std::ssize(matrix), int64_t{dim} * dim);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      Eigen::Map<const RowMajor>(matrix.data(), dim, dim));
  KVL_CHECK(solver.info() == Eigen::Success);
  return {Flatten(solver.eigenvalues()), Flatten(solver.eigenvectors())};
}

bool IsPositive(std::span<const double> matrix, int dim, double ridge) {
  KVL_CHECK_EQ(std::ssize(matrix), int64_t{dim} * dim);
  Eigen::MatrixXd sum = Eigen::Map<const RowMajor>(matrix.data(), dim, dim);
  sum.diagonal().array() += ridge;
  return Eigen::LLT<Eigen::MatrixXd>(sum).info() == Eigen::Success;
}

SingularValueDecomposition DecomposeSquare(std::span<const double> matrix, int dim) {
  KVL_CHECK_EQ(std::ssize(matrix), int64_t{dim} * dim);
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(
      Eigen::Map<const Eigen::MatrixXd>(matrix.data(), dim, dim),
      Eigen::ComputeFullU | Eigen::ComputeFullV);
  return {Flatten(svd.singularValues()), Flatten(svd.matrixU()), Flatten(svd.matrixV())};
}

std::vector<double> InvertSquare(std::span<const double> matrix, int dim) {
  KVL_CHECK_EQ(std::ssize(matrix), int64_t{dim} * dim);
  const RowMajor inverse =
      Eigen::Map<const RowMajor>(matrix.data(), dim, dim).partialPivLu().inverse();
  return Flatten(inverse);
}

}  // namespace kvlathe
