#include "calibration/weight_fisher.h"

#include <cmath>

#include "cpu/kernels/linear/dense_product.h"

namespace kvlathe {

WeightFisherSums::WeightFisherSums(int n_layers, int64_t hidden_dim, int64_t width,
                                   ThreadPool* pool)
    : hidden_dim_(hidden_dim),
      width_(width),
      pool_(pool),
      k_(n_layers, std::vector<float>(width * hidden_dim)),
      v_(k_),
      products_(pool->n_workers()) {}

void WeightFisherSums::AddSquares(const RowGradients& gradients, const float* rows,
                                  int64_t row_stride, std::vector<float>* squares) {
  constexpr int64_t kColumnStep = 16;
  pool_->Run([&](int worker_id) {
    const Range columns = ShareOf(hidden_dim_, kColumnStep, worker_id, pool_->n_workers());
    const int64_t n_columns = columns.end - columns.begin;
    if (n_columns == 0) return;
    std::vector<float>& product = products_[worker_id];
    product.resize(width_ * n_columns);
    Multiply({.n_rows = width_,
              .n_columns = n_columns,
              .n_inner = gradients.n_tokens,
              .a = rows,
              .a_stride = row_stride,
              .is_a_transposed = true,
              .b = gradients.projections.inputs + columns.begin,
              .b_stride = hidden_dim_,
              .c = product.data(),
              .c_stride = n_columns});
    for (int64_t i = 0; i < width_; ++i) {
      float* const sums = squares->data() + i * hidden_dim_ + columns.begin;
      for (int64_t j = 0; j < n_columns; ++j) {
        const float g = product[i * n_columns + j];
        sums[j] += g * g;
      }
    }
  });
}

void WeightFisherSums::Add(const RowGradients& gradients) {
  const RowGradients::Projections& p = gradients.projections;
  AddSquares(gradients, p.k, p.k_stride, &k_[gradients.layer_idx]);
  AddSquares(gradients, p.v, width_, &v_[gradients.layer_idx]);
}

StatusOr<FisherWeights> WeightFisherSums::Finish(int64_t n_sequences) const {
  FisherWeights weights;
  const auto mean_root = [&](const std::vector<float>& squares) {
    double sum = 0;
    for (const float x : squares) sum += std::sqrt(double{x} / static_cast<double>(n_sequences));
    return sum / static_cast<double>(squares.size());
  };
  for (size_t l = 0; l < k_.size(); ++l) {
    weights.k.push_back(mean_root(k_[l]));
    weights.v.push_back(mean_root(v_[l]));
    if (std::isfinite(weights.k.back()) && std::isfinite(weights.v.back())) continue;
    return Error(StatusCode::kDataLoss,
                 "layer {}: gradients are not finite; the weights are damaged", l);
  }
  return weights;
}

}  // namespace kvlathe
