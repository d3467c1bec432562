#include "calibration/gradients/layer_pass.h"

#include <algorithm>
#include <cstring>

namespace kvlathe {

LayerPass::LayerPass(ModelWeights* weights, ThreadPool* pool, const ElementwiseKernels* kernels,
                     int newest)
    : weights_(weights),
      pool_(pool),
      kernels_(kernels),
      newest_(newest),
      ropes_(weights->config().attention, weights->config().rope_dim()),
      attention_(pool, kernels) {}

Status LayerPass::Rows::Prepare(int64_t n_tokens, int64_t width) {
  width_ = width;
  return values_.EnsureSize(n_tokens * width * static_cast<int64_t>(sizeof(float)),
                            "gradients of a layer");
}

Status LayerPass::Prepare(int64_t n_tokens) {
  const ModelConfig& c = config();
  n_tokens_ = n_tokens;
  const int64_t d = c.head_dim, q = c.n_heads * d, kv = c.n_kv_heads * d, hidden = c.hidden_dim;
  const std::pair<Rows*, int64_t> all[] = {
      {&forward_.normed, hidden},   {&forward_.raw_qk, c.norms.of_qk ? q + kv : 0},
      {&forward_.qk, q + kv},       {&forward_.v, kv},
      {&forward_.attended, q},      {&forward_.attention_out, hidden},
      {&forward_.middle, hidden},   {&forward_.ffn_normed, hidden},
      {&forward_.up, c.mlp_rows()}, {&forward_.gated, c.ffn_dim},
      {&forward_.mlp_out, hidden},  {&back_.normed, hidden},
      {&back_.qk, q + kv},          {&back_.v, kv},
      {&back_.attended, q},         {&back_.part, hidden},
      {&back_.ffn_normed, hidden},  {&back_.up, c.mlp_rows()},
      {&back_.gated, c.ffn_dim},    {&shown_.far_k_post, kv},
      {&shown_.far_k_pre, kv},      {&shown_.far_v, kv},
      {&shown_.k_post_rows, kv},    {&shown_.k_pre_rows, kv},
  };
  for (const auto& [rows, width] : all) KVL_RETURN_IF_ERROR(rows->Prepare(n_tokens, width));
  if (c.rope_dim() == 0) return OkStatus();
  ropes_.Extend(static_cast<int>(n_tokens));
  const int64_t n_sines = n_tokens * c.rope_dim() / 2;
  negated_sines_.assign(c.attention.kinds.size(), {});
  for (int l = 0; l < c.n_layers; ++l) {
    std::vector<float>& negated = negated_sines_[c.attention.kind_idx(l)];
    const float* const sines = ropes_.of(l).sin(0);
    negated.assign(sines, sines + n_sines);
    for (float& x : negated) x = -x;
  }
  return OkStatus();
}

Status LayerPass::Load(int layer_idx) {
  const ModelConfig& c = config();
  KVL_RETURN_IF_ERROR(attention_.Prepare({.n_tokens = n_tokens_,
                                          .n_heads = c.n_heads,
                                          .n_kv_heads = c.n_kv_heads,
                                          .head_dim = c.head_dim,
                                          .window = c.attention.of(layer_idx).window,
                                          .newest = newest_}));
  if (layer_idx == layer_idx_) return OkStatus();
  layer_idx_ = -1;
  const LayerWeights& layer = weights_->layer(layer_idx);
  KVL_ASSIGN_OR_RETURN(values_, weights_->FoldValues(layer_idx, nullptr, pool_));
  KVL_RETURN_IF_ERROR(matrices_.qk.Unpack(layer.qk, pool_));
  KVL_RETURN_IF_ERROR(matrices_.v.Unpack(values_->v, pool_));
  KVL_RETURN_IF_ERROR(matrices_.o.Unpack(values_->o, pool_));
  KVL_RETURN_IF_ERROR(matrices_.mlp_in.Unpack(layer.mlp_in, pool_));
  KVL_RETURN_IF_ERROR(matrices_.down.Unpack(layer.down, pool_));
  layer_idx_ = layer_idx;
  return OkStatus();
}

RowNorm LayerPass::NormOf(const NormWeights& norm) const {
  return {.weight = norm.weight.data(),
          .bias = norm.bias.empty() ? nullptr : norm.bias.data(),
          .eps = config().norms.eps,
          .n_dims = config().hidden_dim};
}

RowNorm LayerPass::OutputNormOf(const NormWeights& norm) const {
  RowNorm of_output = NormOf(norm);
  of_output.bias = nullptr;  // these norms take no mean off, whatever the others do
  return of_output;
}

RowNorm LayerPass::HeadNormOf(const NormWeights& norm) const {
  return {.weight = norm.weight.data(), .eps = config().norms.eps, .n_dims = config().head_dim};
}

AttentionRows LayerPass::RowsThatAttend() {
  const int64_t q_width = int64_t{config().n_heads} * config().head_dim;
  return {.q = forward_.qk.data(),
          .q_stride = forward_.qk.width(),
          .k = forward_.qk.data() + q_width,
          .k_stride = forward_.qk.width(),
          .v = forward_.v.data(),
          .v_stride = forward_.v.width()};
}

template <typename F>
void LayerPass::ForTokens(const F& fn) {
  pool_->Run([&](int worker_id) {
    const Range tokens = ShareOf(n_tokens_, 1, worker_id, pool_->n_workers());
    if (tokens.begin < tokens.end) fn(tokens);
  });
}

void LayerPass::NormaliseTokens(const RowNorm& norm, const float* x, float* y) {
  ForTokens([&](Range tokens) {
    const int64_t first = tokens.begin * norm.n_dims;
    Normalise(*kernels_, norm, tokens.end - tokens.begin, x + first, y + first);
  });
}

void LayerPass::NormaliseTokensBack(const RowNorm& norm, const float* x, const float* dy,
                                    bool accumulate, float* dx) {
  ForTokens([&](Range tokens) {
    const int64_t first = tokens.begin * norm.n_dims;
    NormaliseBack(norm, tokens.end - tokens.begin, x + first, dy + first, accumulate, dx + first);
  });
}

void LayerPass::MultiplyTokens(const FloatMatrix& w, const FloatTable& bias, Rows* from, Rows* to) {
  MultiplyRows({.w = &w,
                .n_rows = n_tokens_,
                .from = from->data(),
                .from_stride = from->width(),
                .to = to->data(),
                .to_stride = to->width()},
               bias.empty() ? nullptr : bias.data(), pool_);
}

void LayerPass::MultiplyTokensBack(const FloatMatrix& w, const float* from, Rows* to,
                                   bool accumulate) {
  MultiplyRowsBack({.w = &w,
                    .n_rows = n_tokens_,
                    .from = from,
                    .from_stride = w.n_out(),
                    .to = to->data(),
                    .to_stride = to->width(),
                    .accumulate = accumulate},
                   pool_);
}

void LayerPass::Turn(int n_heads, const float* sines, int64_t token_stride, float* rows) {
  const int rope_dim = config().rope_dim(), d = config().head_dim;
  if (rope_dim == 0) return;
  const RopeTable& rope = ropes_.of(layer_idx_);
  ForTokens([&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const float* const cos = rope.cos(static_cast<int>(t));
      for (int h = 0; h < n_heads; ++h) {
        float* const row = rows + t * token_stride + int64_t{h} * d;
        kernels_->rope(row, cos, sines + t * rope_dim / 2, rope_dim, d, DType::kF32, row);
      }
    }
  });
}

void LayerPass::ZeroDecisions(int n_heads, int64_t token_stride, float* rows) {
  const int d = config().head_dim, channel = config().dmc->is_last ? d - 1 : 0;
  for (int64_t t = 0; t < n_tokens_; ++t) {
    for (int h = 0; h < n_heads; ++h) rows[t * token_stride + int64_t{h} * d + channel] = 0;
  }
}

void LayerPass::ProjectRows() {
  const ModelConfig& c = config();
  const int n_rows = c.n_heads + c.n_kv_heads;
  MultiplyTokens(matrices_.qk, layer().qk_bias, &forward_.normed, &forward_.qk);
  MultiplyTokens(matrices_.v, values_->v_bias, &forward_.normed, &forward_.v);
  if (c.norms.of_qk) {
    std::copy_n(forward_.qk.data(), n_tokens_ * forward_.qk.width(), forward_.raw_qk.data());
    ForTokens([&](Range tokens) {
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        const int64_t q = t * forward_.qk.width(), k = q + int64_t{c.n_heads} * c.head_dim;
        Normalise(*kernels_, HeadNormOf(layer().q_norm), c.n_heads, forward_.raw_qk.data() + q,
                  forward_.qk.data() + q);
        Normalise(*kernels_, HeadNormOf(layer().k_norm), c.n_kv_heads, forward_.raw_qk.data() + k,
                  forward_.qk.data() + k);
      }
    });
  }
  if (c.dmc.has_value()) ZeroDecisions(n_rows, forward_.qk.width(), forward_.qk.data());
  CopyKeys(&shown_.k_pre_rows);
  if (c.rope_dim() > 0)
    Turn(n_rows, ropes_.of(layer_idx_).sin(0), forward_.qk.width(), forward_.qk.data());
  if (c.dmc.has_value() && c.dmc->zeroes_after_rope) {
    ZeroDecisions(n_rows, forward_.qk.width(), forward_.qk.data());
  }
  CopyKeys(&shown_.k_post_rows);
}

void LayerPass::CopyKeys(Rows* to) {
  const int64_t width = to->width(), stride = forward_.qk.width();
  const float* const keys = forward_.qk.data() + stride - width;
  for (int64_t t = 0; t < n_tokens_; ++t) {
    std::copy_n(keys + t * stride, width, to->data() + t * width);
  }
}

void LayerPass::RunAttention(const float* stream) {
  NormaliseTokens(NormOf(layer().attn_norm), stream, forward_.normed.data());
  ProjectRows();
  attention_.Run(RowsThatAttend(), forward_.attended.data());
  MultiplyTokens(matrices_.o, values_->o_bias, &forward_.attended, &forward_.attention_out);
}

void LayerPass::RunMlp(const float* from) {
  const ModelConfig& c = config();
  if (c.shared_norm) {
    std::copy_n(forward_.normed.data(), n_tokens_ * forward_.normed.width(),
                forward_.ffn_normed.data());
  } else {
    NormaliseTokens(NormOf(layer().ffn_norm), from, forward_.ffn_normed.data());
  }
  MultiplyTokens(matrices_.mlp_in, layer().mlp_in_bias, &forward_.ffn_normed, &forward_.up);
  ForTokens([&](Range tokens) {
    Gate(*kernels_, c.mlp, tokens.end - tokens.begin, c.ffn_dim,
         forward_.up.data() + tokens.begin * forward_.up.width(),
         forward_.gated.data() + tokens.begin * forward_.gated.width());
  });
}

void LayerPass::AddToStream(const NormWeights& norm, Rows* part, float* stream) {
  float* added = part->data();
  if (config().norms.of_outputs) {
    added = back_.part.data();
    NormaliseTokens(OutputNormOf(norm), part->data(), added);
  }
  const int64_t width = config().hidden_dim;
  ForTokens([&](Range tokens) {
    for (int64_t i = tokens.begin * width; i < tokens.end * width; ++i) stream[i] += added[i];
  });
}

void LayerPass::Run(float* stream) {
  const bool is_parallel = config().parallel_block;
  RunAttention(stream);
  if (!is_parallel) AddToStream(layer().attn_out_norm, &forward_.attention_out, stream);
  RunMlp(stream);
  MultiplyTokens(matrices_.down, layer().down_bias, &forward_.gated, &forward_.mlp_out);
  if (is_parallel) AddToStream(layer().attn_out_norm, &forward_.attention_out, stream);
  AddToStream(layer().ffn_out_norm, &forward_.mlp_out, stream);
}

const float* LayerPass::GradientOfPart(const NormWeights& norm, Rows* part, const float* d_added) {
  if (!config().norms.of_outputs) return d_added;
  NormaliseTokensBack(OutputNormOf(norm), part->data(), d_added, false, back_.part.data());
  return back_.part.data();
}

void LayerPass::RunMlpBack(const float* d_added) {
  const ModelConfig& c = config();
  if (c.norms.of_outputs) {
    MultiplyTokens(matrices_.down, layer().down_bias, &forward_.gated, &forward_.mlp_out);
  }
  MultiplyTokensBack(matrices_.down,
                     GradientOfPart(layer().ffn_out_norm, &forward_.mlp_out, d_added), &back_.gated,
                     false);
  ForTokens([&](Range tokens) {
    const int64_t up = tokens.begin * forward_.up.width();
    GateBack(c.mlp, tokens.end - tokens.begin, c.ffn_dim, forward_.up.data() + up,
             back_.gated.data() + tokens.begin * back_.gated.width(), back_.up.data() + up);
  });
  MultiplyTokensBack(matrices_.mlp_in, back_.up.data(), &back_.ffn_normed, false);
}

void LayerPass::TurnRowsBack() {
  const ModelConfig& c = config();
  const int n_rows = c.n_heads + c.n_kv_heads;
  const float* const negated =
      c.rope_dim() > 0 ? negated_sines_[c.attention.kind_idx(layer_idx_)].data() : nullptr;
  if (c.dmc.has_value() && c.dmc->zeroes_after_rope) {
    ZeroDecisions(n_rows, back_.qk.width(), back_.qk.data());
    ZeroDecisions(c.n_kv_heads, shown_.far_k_post.width(), shown_.far_k_post.data());
  }
  std::copy_n(shown_.far_k_post.data(), n_tokens_ * shown_.far_k_post.width(),
              shown_.far_k_pre.data());
  Turn(n_rows, negated, back_.qk.width(), back_.qk.data());
  Turn(c.n_kv_heads, negated, shown_.far_k_pre.width(), shown_.far_k_pre.data());
  if (c.dmc.has_value()) {
    ZeroDecisions(n_rows, back_.qk.width(), back_.qk.data());
    ZeroDecisions(c.n_kv_heads, shown_.far_k_pre.width(), shown_.far_k_pre.data());
  }
  if (!c.norms.of_qk) return;
  ForTokens([&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const int64_t q = t * forward_.qk.width(), k = q + int64_t{c.n_heads} * c.head_dim;
      NormaliseBack(HeadNormOf(layer().q_norm), c.n_heads, forward_.raw_qk.data() + q,
                    back_.qk.data() + q, false, back_.qk.data() + q);
      NormaliseBack(HeadNormOf(layer().k_norm), c.n_kv_heads, forward_.raw_qk.data() + k,
                    back_.qk.data() + k, false, back_.qk.data() + k);
    }
  });
}

void LayerPass::RunAttentionBack(const float* d_added) {
  const ModelConfig& c = config();
  MultiplyTokensBack(matrices_.o,
                     GradientOfPart(layer().attn_out_norm, &forward_.attention_out, d_added),
                     &back_.attended, false);
  attention_.RunBack(RowsThatAttend(), forward_.attended.data(), back_.attended.data(),
                     {.q = back_.qk.data(),
                      .q_stride = back_.qk.width(),
                      .k = back_.qk.data() + int64_t{c.n_heads} * c.head_dim,
                      .k_stride = back_.qk.width(),
                      .v = back_.v.data(),
                      .v_stride = back_.v.width(),
                      .far_k = shown_.far_k_post.data(),
                      .far_v = shown_.far_v.data()});
  TurnRowsBack();
  MultiplyTokensBack(matrices_.qk, back_.qk.data(), &back_.normed, false);
  MultiplyTokensBack(matrices_.v, back_.v.data(), &back_.normed, true);
}

RowGradients LayerPass::RunBack(const float* stream, float* gradient) {
  const ModelConfig& c = config();
  const int64_t n_values = n_tokens_ * c.hidden_dim;
  RunAttention(stream);
  const float* mlp_from = stream;
  if (!c.parallel_block) {
    std::copy_n(stream, n_values, forward_.middle.data());
    AddToStream(layer().attn_out_norm, &forward_.attention_out, forward_.middle.data());
    mlp_from = forward_.middle.data();
  }
  RunMlp(mlp_from);
  RunMlpBack(gradient);
  const bool has_ffn_norm = !c.shared_norm;
  if (!c.parallel_block) {
    NormaliseTokensBack(NormOf(layer().ffn_norm), mlp_from, back_.ffn_normed.data(), true,
                        gradient);
  }
  RunAttentionBack(gradient);
  if (c.parallel_block && has_ffn_norm) {
    NormaliseTokensBack(NormOf(layer().ffn_norm), mlp_from, back_.ffn_normed.data(), true,
                        gradient);
  }
  if (c.shared_norm) {
    for (int64_t i = 0; i < n_values; ++i) back_.normed.data()[i] += back_.ffn_normed.data()[i];
  }
  NormaliseTokensBack(NormOf(layer().attn_norm), stream, back_.normed.data(), true, gradient);
  return {.layer_idx = layer_idx_,
          .n_tokens = n_tokens_,
          .k_post = shown_.far_k_post.data(),
          .k_pre = shown_.far_k_pre.data(),
          .v = shown_.far_v.data(),
          .k_post_rows = shown_.k_post_rows.data(),
          .k_pre_rows = shown_.k_pre_rows.data(),
          .v_rows = forward_.v.data()};
}

}  // namespace kvlathe
