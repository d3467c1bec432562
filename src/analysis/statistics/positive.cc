#include "analysis/statistics/positive.h"

#include <cmath>
#include <numeric>

#include "tensor/decompositions.h"

namespace kvlathe {
namespace {

// Of the Frobenius norm. Rounding to F32 moves no eigenvalue by more than 2^-24 of it, and sums of
// products in F32 by some of these.
constexpr double kRounding = 1e-6;

// Matrices [n_matrices, dim, dim] of the layers in turn.
struct Covariances {
  const char* rows;
  const std::vector<float>* values;
  int dim;
};

std::vector<Covariances> CovariancesOf(const CalibrationStatistics& s) {
  const int head_dim = s.shape.head_dim, width = JointHeads(s.shape) * head_dim;
  const int of_layer = s.shape.n_kv_heads * head_dim;
  const int of_both = 2 * KeyValueHeads(s.shape) * head_dim;
  std::vector<Covariances> all = {
      {"queries after RoPE", &s.q_post.covariance, head_dim},
      {"keys after RoPE", &s.k_post.covariance, head_dim},
      {"keys before RoPE", &s.k_pre.covariance, head_dim},
      {"values", &s.v.covariance, head_dim},
      {"queries before RoPE", &s.q_pre.covariance, head_dim},
      {"queries of the first positions", &s.sink_q_post.covariance, head_dim},
      {"keys of the first positions", &s.sink_k_post.covariance, head_dim},
      {"values of the first positions", &s.sink_v.covariance, head_dim},
      {"keys across heads", &s.k_pre_across_heads, of_layer},
      {"values across heads", &s.v_across_heads, of_layer},
      {"outputs of attention", &s.outputs.covariance, head_dim},
      {"keys with values", &s.key_values.covariance, of_both},
      {"keys with values by their gradients", &s.key_values.weighed_covariance, of_both}};
  for (const JointStatistics* part : {&s.joint, &s.held_back, &s.through_all}) {
    all.insert(all.end(),
               {{"keys after RoPE", &part->k.covariance, width},
                {"keys before RoPE", &part->k_pre.covariance, width},
                {"values", &part->v.covariance, width},
                {"keys after RoPE by their gradients", &part->k.weighed_covariance, width},
                {"keys before RoPE by their gradients", &part->k_pre.weighed_covariance, width},
                {"values by their gradients", &part->v.weighed_covariance, width}});
  }
  return all;
}

Status CheckLayer(const CalibrationStatistics& s, int layer_idx) {
  for (const Covariances& covariances : CovariancesOf(s)) {
    const int64_t square = int64_t{covariances.dim} * covariances.dim;
    const int64_t of_layer = std::ssize(*covariances.values) / s.shape.n_layers;
    const auto first = covariances.values->begin() + layer_idx * of_layer;
    for (auto matrix = first; matrix != first + of_layer; matrix += square) {
      if (IsSumOfSquares({matrix, matrix + square}, covariances.dim)) continue;
      return Error(StatusCode::kDataLoss,
                   "layer {}: {} have a negative variance in some direction: the sums of the "
                   "calibration have lost their digits. Take a cache that needs no calibration for "
                   "this model, such as kivi or int8",
                   layer_idx, covariances.rows);
    }
  }
  return OkStatus();
}

}  // namespace

bool IsSumOfSquares(const std::vector<double>& matrix, int dim) {
  const double norm =
      std::sqrt(std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0));
  return norm == 0 || IsPositive(matrix, dim, kRounding * norm);
}

Status CheckCovariances(const CalibrationStatistics& statistics, ThreadPool* pool) {
  std::vector<Status> statuses(statistics.shape.n_layers);
  pool->Run([&](int worker_id) {
    const Range layers = ShareOf(std::ssize(statuses), 1, worker_id, pool->n_workers());
    for (int64_t l = layers.begin; l < layers.end; ++l) {
      statuses[l] = CheckLayer(statistics, static_cast<int>(l));
    }
  });
  for (const Status& status : statuses) KVL_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace kvlathe
