#include "calibration/gradients/model_norms.h"

#include <algorithm>

namespace kvlathe {

ModelNorms::ModelNorms(const ModelConfig& config)
    : config_(config),
      ones_(std::max(config.hidden_dim, config.n_heads * config.head_dim), 1.0f),
      zeros_(ones_.size(), 0.0f) {}

RowNorm ModelNorms::Of(NormKind kind, const NormWeights& norm, int64_t n_dims) const {
  const float* const bias = norm.bias.empty() ? zeros_.data() : norm.bias.data();
  return {.weight = norm.weight.data(),
          .bias = kind == NormKind::kRms ? nullptr : bias,
          .eps = config_.norms.eps,
          .n_dims = n_dims};
}

RowNorm ModelNorms::OfStream(const NormWeights& norm) const {
  return Of(config_.norms.kind, norm, config_.hidden_dim);
}

RowNorm ModelNorms::OfOutput(const NormWeights& norm) const {
  return Of(NormKind::kRms, norm, config_.hidden_dim);
}

RowNorm ModelNorms::OfHeads(const NormWeights& norm, int n_heads) const {
  const QkNormConfig& norms = *config_.norms.of_qk;
  const bool is_over_all = norms.over == QkNormConfig::Over::kAllHeads;
  const int64_t d = config_.head_dim;
  RowNorm of_heads = Of(norms.kind, norm, is_over_all ? n_heads * d : d);
  if (norms.over == QkNormConfig::Over::kHeadOwn) of_heads.n_groups = n_heads;
  if (norms.weighs_turned_queries) of_heads.weight = ones_.data();
  return of_heads;
}

}  // namespace kvlathe
