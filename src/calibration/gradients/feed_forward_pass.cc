#include "calibration/gradients/feed_forward_pass.h"

namespace kvlathe {

Status FeedForwardPass::Prepare() {
  const ModelConfig& c = weights_.config();
  KVL_RETURN_IF_ERROR(gated_.Prepare(products_.n_tokens(), c.ffn_dim));
  KVL_RETURN_IF_ERROR(d_gated_.Prepare(products_.n_tokens(), c.ffn_dim));
  return d_up_.Prepare(products_.n_tokens(), c.mlp_rows());
}

Status FeedForwardPass::Load(int layer_idx, PassWays ways) {
  layer_idx_ = layer_idx;
  KVL_RETURN_IF_ERROR(products_.Load(layer().mlp_in, ways, &mlp_in_));
  return products_.Load(layer().down, ways, &down_);
}

RowGate FeedForwardPass::GateOf() const {
  const ModelConfig& c = weights_.config();
  return {.mlp = c.mlp, .ffn_dim = c.ffn_dim, .xielu = layer().xielu};
}

void FeedForwardPass::RunIn(TokenRows* from, TokenRows* kept) {
  products_.Multiply(mlp_in_, layer().mlp_in_bias, from, kept);
}

void FeedForwardPass::RunOut(TokenRows* kept, TokenRows* to) {
  products_.ForTokens([&](Range tokens) {
    Gate(kernels_, GateOf(), tokens.end - tokens.begin, kept->data() + tokens.begin * kept->width(),
         gated_.data() + tokens.begin * gated_.width());
  });
  products_.Multiply(down_, layer().down_bias, &gated_, to);
}

void FeedForwardPass::RunBack(TokenRows* kept, const float* d_to, TokenRows* d_from) {
  products_.MultiplyBack(down_, d_to, &d_gated_, false);
  products_.ForTokens([&](Range tokens) {
    const int64_t up = tokens.begin * kept->width();
    GateBack(GateOf(), tokens.end - tokens.begin, kept->data() + up,
             d_gated_.data() + tokens.begin * d_gated_.width(), d_up_.data() + up);
  });
  products_.MultiplyBack(mlp_in_, d_up_.data(), d_from, false);
}

}  // namespace kvlathe
