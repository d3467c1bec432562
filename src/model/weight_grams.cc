#include "model/weight_grams.h"

#include <Eigen/Core>
#include <iterator>
#include <utility>

namespace kvlathe {

namespace {

using ConstMap =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// W_h^T W_h of each of n_heads below each other. Rows of the stored matrix are output channels:
// S S^T for S [head_dim, hidden_dim].
WeightGrams::HeadMatrices HeadGrams(const float* w, int n_heads, int64_t head_dim, int64_t hidden) {
  WeightGrams::HeadMatrices grams(n_heads, std::vector<double>(head_dim * head_dim));
  for (int g = 0; g < n_heads; ++g) {
    const Eigen::MatrixXd s = ConstMap(w + g * head_dim * hidden, head_dim, hidden).cast<double>();
    Eigen::Map<Eigen::MatrixXd>(grams[g].data(), head_dim, head_dim).noalias() = s * s.transpose();
  }
  return grams;
}

// Appends the parts of `joined` [n_heads, head_dim].
void AppendHeads(const float* joined, int n_heads, int64_t head_dim,
                 WeightGrams::HeadVectors* heads) {
  for (int g = 0; g < n_heads; ++g) {
    heads->emplace_back(joined + g * head_dim, joined + (g + 1) * head_dim);
  }
}

}  // namespace

StatusOr<WeightGrams::HeadMatrices> WeightGrams::ValueGramsOf(int layer_idx, int n_joined) {
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w_v,
                       weights_.reader().Matrix(weights_.names().v(layer_idx)));
  return HeadGrams(w_v.data(), config_.n_kv_heads / n_joined, n_joined * config_.head_dim,
                   config_.hidden_dim);
}

StatusOr<WeightGrams::HeadMatrices> WeightGrams::KeyGramsOf(int layer_idx, int n_joined) {
  KVL_ASSIGN_OR_RETURN(std::vector<float> w, weights_.QkMatrix(layer_idx));
  const int64_t n_query_rows = int64_t{config_.n_heads} * config_.head_dim;
  std::vector<float> norm;
  const std::optional<QkNormConfig>& norms = config_.norms.of_qk;
  if (norms.has_value() && !norms->weighs_turned_queries) {
    KVL_ASSIGN_OR_RETURN(norm, weights_.reader().Vector(weights_.names().k_norm(layer_idx)));
    for (float& weight : norm) weight += weights_.names().norm_offset();
  }
  if (norms.has_value() && norms->kind != NormKind::kRms) {
    const bool is_over_all = norms->over == QkNormConfig::Over::kAllHeads;
    const int64_t n_together =
        is_over_all ? config_.n_kv_heads * config_.head_dim : config_.head_dim;
    const int64_t hidden = config_.hidden_dim;
    Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> keys(
        &w[n_query_rows * hidden], int64_t{config_.n_kv_heads} * config_.head_dim, hidden);
    for (int64_t first = 0; first < keys.rows(); first += n_together) {
      auto rows = keys.middleRows(first, n_together);
      rows.rowwise() -= rows.colwise().mean().eval();
    }
  }
  for (int64_t row = 0; !norm.empty() && row < int64_t{config_.n_kv_heads} * config_.head_dim;
       ++row) {
    float* const weights = &w[(n_query_rows + row) * config_.hidden_dim];
    for (int64_t i = 0; i < config_.hidden_dim; ++i) weights[i] *= norm[row % std::ssize(norm)];
  }
  return HeadGrams(w.data() + n_query_rows * config_.hidden_dim, config_.n_kv_heads / n_joined,
                   n_joined * config_.head_dim, config_.hidden_dim);
}

StatusOr<WeightGrams::HeadMatrices> WeightGrams::OutputGramsOf(int layer_idx, ThreadPool* pool) {
  const int64_t d = config_.head_dim, o_full = config_.n_heads * d;
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w_o,
                       weights_.reader().Matrix(weights_.names().o(layer_idx)));
  const ConstMap columns(w_o.data(), config_.hidden_dim, o_full);
  const int64_t n_kv = config_.n_kv_heads, group = config_.gqa_group();
  HeadMatrices grams(n_kv, std::vector<double>(d * d));
  pool->Run([&](int worker_id) {
    const Range heads = ShareOf(n_kv, 1, worker_id, pool->n_workers());
    for (int64_t g = heads.begin; g < heads.end; ++g) {
      Eigen::MatrixXd lower = Eigen::MatrixXd::Zero(d, d);
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const Eigen::MatrixXd s = columns.middleCols(h * d, d).cast<double>();
        lower.selfadjointView<Eigen::Lower>().rankUpdate(s.transpose());
      }
      Eigen::Map<Eigen::MatrixXd>(grams[g].data(), d, d) = lower.selfadjointView<Eigen::Lower>();
    }
  });
  return grams;
}

StatusOr<WeightGrams::HeadMatrices> WeightGrams::OutputGrams(ThreadPool* pool) {
  HeadMatrices all;
  for (int l = 0; l < config_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(HeadMatrices grams, OutputGramsOf(l, pool));
    std::move(grams.begin(), grams.end(), std::back_inserter(all));
  }
  return all;
}

StatusOr<WeightGrams::HeadMatrices> WeightGrams::KeyGrams(int n_joined) {
  HeadMatrices all;
  for (int l = 0; l < config_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(HeadMatrices grams, KeyGramsOf(l, n_joined));
    std::move(grams.begin(), grams.end(), std::back_inserter(all));
  }
  return all;
}

StatusOr<WeightGrams::HeadVectors> WeightGrams::KeyBiases() {
  HeadVectors all;
  if (!config_.biases.qkv || config_.norms.of_qk) return all;
  const int64_t d = config_.head_dim;
  for (int l = 0; l < config_.n_layers; ++l) {
    std::vector<float> bias;  // of all queries, then of all keys
    for (const Projection& part : weights_.names().qk(l)) {
      KVL_ASSIGN_OR_RETURN(const std::vector<float> of_part, weights_.reader().Bias(part));
      bias.insert(bias.end(), of_part.begin(), of_part.end());
    }
    AppendHeads(bias.data() + config_.n_heads * d, config_.n_kv_heads, d, &all);
  }
  return all;
}

StatusOr<WeightGrams::HeadVectors> WeightGrams::ValueBiases() {
  HeadVectors all;
  if (!config_.biases.qkv) return all;
  for (int l = 0; l < config_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(const std::vector<float> bias,
                         weights_.reader().Bias(weights_.names().v(l)));
    AppendHeads(bias.data(), config_.n_kv_heads, config_.head_dim, &all);
  }
  return all;
}

StatusOr<WeightGrams::HeadMatrices> WeightGrams::ValueGrams(int n_joined) {
  HeadMatrices all;
  for (int l = 0; l < config_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(HeadMatrices grams, ValueGramsOf(l, n_joined));
    std::move(grams.begin(), grams.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace kvlathe
