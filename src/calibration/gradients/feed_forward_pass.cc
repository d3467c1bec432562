#include "calibration/gradients/feed_forward_pass.h"

#include <algorithm>

namespace kvlathe {

FeedForwardPass::FeedForwardPass(const ModelWeights* weights, LayerProducts* products,
                                 const ElementwiseKernels* kernels)
    : weights_(*weights), products_(*products), kernels_(*kernels) {
  if (weights->config().experts.has_value()) experts_.emplace(weights, products, kernels);
}

int64_t FeedForwardPass::KeptWidth(int layer_idx) const {
  return has_experts(layer_idx) ? 0 : weights_.config().mlp_rows();
}

int64_t FeedForwardPass::WidestRow() const {
  int64_t widest = experts_.has_value() ? experts_->WidestRow() : 0;
  for (int l = 0; l < weights_.config().n_layers; ++l) widest = std::max(widest, KeptWidth(l));
  return widest;
}

Status FeedForwardPass::Prepare() {
  const ModelConfig& c = weights_.config();
  if (experts_.has_value()) KVL_RETURN_IF_ERROR(experts_->Prepare());
  bool has_mlp = false;
  for (int l = 0; l < c.n_layers; ++l) has_mlp = has_mlp || !has_experts(l);
  if (!has_mlp) return OkStatus();
  KVL_RETURN_IF_ERROR(gated_.Prepare(products_.n_tokens(), c.ffn_dim));
  KVL_RETURN_IF_ERROR(d_gated_.Prepare(products_.n_tokens(), c.ffn_dim));
  return d_up_.Prepare(products_.n_tokens(), c.mlp_rows());
}

Status FeedForwardPass::Load(int layer_idx, PassWays ways) {
  layer_idx_ = layer_idx;
  if (has_experts(layer_idx)) return experts_->Load(layer_idx);
  KVL_RETURN_IF_ERROR(products_.Load(layer().mlp_in, ways, &mlp_in_));
  return products_.Load(layer().down, ways, &down_);
}

RowGate FeedForwardPass::GateOf() const {
  const ModelConfig& c = weights_.config();
  return {.mlp = c.mlp, .ffn_dim = c.ffn_dim, .xielu = layer().xielu};
}

void FeedForwardPass::RunIn(TokenRows* from, TokenRows* kept) {
  if (has_experts(layer_idx_)) return;
  products_.Multiply(mlp_in_, layer().mlp_in_bias, from, kept);
}

Status FeedForwardPass::RunOut(TokenRows* from, TokenRows* kept, TokenRows* to) {
  if (has_experts(layer_idx_)) return experts_->Run(from, to);
  products_.ForTokens([&](Range tokens) {
    Gate(kernels_, GateOf(), tokens.end - tokens.begin, kept->data() + tokens.begin * kept->width(),
         gated_.data() + tokens.begin * gated_.width());
  });
  products_.Multiply(down_, layer().down_bias, &gated_, to);
  return OkStatus();
}

Status FeedForwardPass::RunBack(TokenRows* from, TokenRows* kept, const float* d_to,
                                TokenRows* d_from) {
  if (has_experts(layer_idx_)) return experts_->RunBack(from, d_to, d_from);
  products_.MultiplyBack(down_, d_to, &d_gated_, false);
  products_.ForTokens([&](Range tokens) {
    const int64_t up = tokens.begin * kept->width();
    GateBack(GateOf(), tokens.end - tokens.begin, kept->data() + up,
             d_gated_.data() + tokens.begin * d_gated_.width(), d_up_.data() + up);
  });
  products_.MultiplyBack(mlp_in_, d_up_.data(), d_from, false);
  return OkStatus();
}

}  // namespace kvlathe
