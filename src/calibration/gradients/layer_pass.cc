#include "calibration/gradients/layer_pass.h"

#include <algorithm>
#include <numeric>

namespace kvlathe {

LayerPass::LayerPass(ModelWeights* weights, ThreadPool* pool, Isa isa, int newest,
                     int64_t kept_bytes)
    : weights_(weights),
      pool_(pool),
      isa_(isa),
      kernels_(&GetElementwiseKernels(isa)),
      newest_(newest),
      packed_(&weights->machine(), pool),
      ropes_(weights->config().attention, weights->config().rope_dim()),
      attention_(pool, kernels_),
      kept_bytes_(kept_bytes) {}

Status LayerPass::Rows::Prepare(int64_t n_tokens, int64_t width) {
  width_ = width;
  return values_.EnsureSize(n_tokens * width * static_cast<int64_t>(sizeof(float)),
                            "gradients of a layer");
}

Status LayerPass::PrepareKept() {
  const ModelConfig& c = config();
  const int64_t d = c.head_dim, q = c.n_heads * d, kv = c.n_kv_heads * d, hidden = c.hidden_dim;
  const std::pair<Rows KeptRows::*, int64_t> all[] = {
      {&KeptRows::raw_qk, c.norms.of_qk ? q + kv : 0},
      {&KeptRows::qk, q + kv},
      {&KeptRows::k_pre, kv},
      {&KeptRows::v, kv},
      {&KeptRows::attended, q},
      {&KeptRows::attention_out, hidden},
      {&KeptRows::middle, hidden},
      {&KeptRows::up, c.mlp_rows()}};
  int64_t n_bytes = 0;  // of a layer
  for (const auto& [unused, width] : all) {
    n_bytes += n_tokens_ * width * static_cast<int64_t>(sizeof(float));
  }
  const int64_t n_kept = std::min<int64_t>(c.n_layers, kept_bytes_ / n_bytes);
  kept_.resize(n_kept + 1);
  for (KeptRows& kept : kept_) {
    for (const auto& [rows, width] : all) {
      KVL_RETURN_IF_ERROR((kept.*rows).Prepare(n_tokens_, width));
    }
  }
  return OkStatus();
}

Status LayerPass::Prepare(int64_t n_tokens) {
  const ModelConfig& c = config();
  n_tokens_ = n_tokens;
  const int64_t d = c.head_dim, q = c.n_heads * d, kv = c.n_kv_heads * d, hidden = c.hidden_dim;
  const std::pair<Rows*, int64_t> all[] = {
      {&forward_.normed, hidden},
      {&forward_.ffn_normed, hidden},
      {&forward_.gated, c.ffn_dim},
      {&forward_.mlp_out, hidden},
      {&back_.normed, hidden},
      {&back_.qk, q + kv},
      {&back_.v, kv},
      {&back_.attended, q},
      {&back_.part, hidden},
      {&back_.ffn_normed, hidden},
      {&back_.up, c.mlp_rows()},
      {&back_.gated, c.ffn_dim},
      {&shown_.far_k_post, kv},
      {&shown_.far_k_pre, kv},
      {&shown_.far_v, kv},
      {&shown_.all_k_post, kv},
      {&shown_.all_k_pre, kv},
      {&shown_.k_post_rows, kv},
      {&shown_.q_post_rows, q},
      {&shown_.q_pre_rows, q},
  };
  KVL_RETURN_IF_ERROR(PrepareKept());
  int64_t widest = 0;
  for (const auto& [rows, width] : all) {
    KVL_RETURN_IF_ERROR(rows->Prepare(n_tokens, width));
    widest = std::max(widest, width);
  }
  KVL_RETURN_IF_ERROR(packed_.Prepare(n_tokens * widest, n_tokens * widest));
  positions_.resize(n_tokens);
  std::iota(positions_.begin(), positions_.end(), 0);
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

Status LayerPass::Load(int layer_idx, Ways ways) {
  const ModelConfig& c = config();
  now_ = &kept_[std::min<int64_t>(layer_idx, std::ssize(kept_) - 1)];
  KVL_RETURN_IF_ERROR(attention_.Prepare({.n_tokens = n_tokens_,
                                          .n_heads = c.n_heads,
                                          .n_kv_heads = c.n_kv_heads,
                                          .head_dim = c.head_dim,
                                          .window = c.attention.of(layer_idx).window,
                                          .newest = newest_}));
  if (layer_idx == layer_idx_ && (ways == Ways::kForward || ways_ == Ways::kBoth)) {
    return OkStatus();
  }
  layer_idx_ = -1;
  const LayerWeights& layer = weights_->layer(layer_idx);
  KVL_ASSIGN_OR_RETURN(values_, weights_->FoldValues(layer_idx, nullptr, pool_));
  const std::pair<Matrix*, const Weight*> all[] = {{&matrices_.qk, &layer.qk},
                                                   {&matrices_.v, &values_->v},
                                                   {&matrices_.o, &values_->o},
                                                   {&matrices_.mlp_in, &layer.mlp_in},
                                                   {&matrices_.down, &layer.down}};
  for (const auto& [matrix, weight] : all) {
    matrix->packed = weight;
    if (ways == Ways::kForward && TakesPacked(*weight)) continue;
    KVL_RETURN_IF_ERROR(matrix->values.Unpack(*weight, pool_));
  }
  layer_idx_ = layer_idx;
  ways_ = ways;
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
  return {.q = now_->qk.data(),
          .q_stride = now_->qk.width(),
          .k = now_->qk.data() + q_width,
          .k_stride = now_->qk.width(),
          .v = now_->v.data(),
          .v_stride = now_->v.width()};
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

void LayerPass::MultiplyTokens(const Matrix& w, const FloatTable& bias, Rows* from, Rows* to) {
  if (TakesPacked(*w.packed)) {
    return packed_.Run(*w.packed, bias, n_tokens_, from->data(), to->data());
  }
  MultiplyRows({.w = &w.values,
                .n_rows = n_tokens_,
                .from = from->data(),
                .from_stride = from->width(),
                .to = to->data(),
                .to_stride = to->width()},
               bias.empty() ? nullptr : bias.data(), pool_);
}

void LayerPass::MultiplyTokensBack(const Matrix& w, const float* from, Rows* to, bool accumulate) {
  MultiplyRowsBack({.w = &w.values,
                    .n_rows = n_tokens_,
                    .from = from,
                    .from_stride = w.values.n_out(),
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

void LayerPass::ZeroQueryChannel(bool again, Rows* qk) {
  const ModelConfig& c = config();
  if (!c.decides_in_queries() || (again && !c.dms->query_channel->zeroes_after_rope)) return;
  for (int64_t t = 0; t < n_tokens_; ++t) {
    for (int64_t g = 0; g < c.n_kv_heads; ++g) {
      qk->data()[t * qk->width() + (g * c.gqa_group() + 1) * c.head_dim - 1] = 0;
    }
  }
}

void LayerPass::ProjectRows(bool shows_queries) {
  const ModelConfig& c = config();
  const int n_rows = c.n_heads + c.n_kv_heads;
  MultiplyTokens(matrices_.qk, layer().qk_bias, &forward_.normed, &now_->qk);
  MultiplyTokens(matrices_.v, values_->v_bias, &forward_.normed, &now_->v);
  if (c.norms.of_qk) {
    std::copy_n(now_->qk.data(), n_tokens_ * now_->qk.width(), now_->raw_qk.data());
    ForTokens([&](Range tokens) {
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        const int64_t q = t * now_->qk.width(), k = q + int64_t{c.n_heads} * c.head_dim;
        Normalise(*kernels_, HeadNormOf(layer().q_norm), c.n_heads, now_->raw_qk.data() + q,
                  now_->qk.data() + q);
        Normalise(*kernels_, HeadNormOf(layer().k_norm), c.n_kv_heads, now_->raw_qk.data() + k,
                  now_->qk.data() + k);
      }
    });
  }
  if (c.dmc.has_value()) ZeroDecisions(n_rows, now_->qk.width(), now_->qk.data());
  ZeroQueryChannel(/*again=*/false, &now_->qk);
  CopyKeys(&now_->qk, &now_->k_pre);
  if (shows_queries) CopyColumns(&now_->qk, 0, &shown_.q_pre_rows);
  if (c.rope_dim() > 0)
    Turn(n_rows, ropes_.of(layer_idx_).sin(0), now_->qk.width(), now_->qk.data());
  if (c.dmc.has_value() && c.dmc->zeroes_after_rope) {
    ZeroDecisions(n_rows, now_->qk.width(), now_->qk.data());
  }
  ZeroQueryChannel(/*again=*/true, &now_->qk);
  CopyKeys(&now_->qk, &shown_.k_post_rows);
  if (shows_queries) CopyColumns(&now_->qk, 0, &shown_.q_post_rows);
}

void LayerPass::CopyColumns(Rows* from_rows, int64_t column, Rows* to) {
  const int64_t width = to->width(), stride = from_rows->width();
  const float* const from = from_rows->data() + column;
  ForTokens([&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      std::copy_n(from + t * stride, width, to->data() + t * width);
    }
  });
}

QkvView LayerPass::View() {
  return {.layer_idx = layer_idx_,
          .n_tokens = static_cast<int>(n_tokens_),
          .positions = positions_.data(),
          .q_pre = shown_.q_pre_rows.data(),
          .q_post = shown_.q_post_rows.data(),
          .k_pre = now_->k_pre.data(),
          .k_post = shown_.k_post_rows.data(),
          .v = now_->v.data()};
}

void LayerPass::RunAttention(const float* stream, bool shows_queries) {
  NormaliseTokens(NormOf(layer().attn_norm), stream, forward_.normed.data());
  ProjectRows(shows_queries);
  attention_.Run(RowsThatAttend(), now_->attended.data());
  MultiplyTokens(matrices_.o, values_->o_bias, &now_->attended, &now_->attention_out);
}

void LayerPass::RunMlp(const float* from) {
  const ModelConfig& c = config();
  if (c.shared_norm) {
    std::copy_n(forward_.normed.data(), n_tokens_ * forward_.normed.width(),
                forward_.ffn_normed.data());
  } else {
    NormaliseTokens(NormOf(layer().ffn_norm), from, forward_.ffn_normed.data());
  }
  MultiplyTokens(matrices_.mlp_in, layer().mlp_in_bias, &forward_.ffn_normed, &now_->up);
}

void LayerPass::RunGate() {
  const ModelConfig& c = config();
  ForTokens([&](Range tokens) {
    Gate(*kernels_, c.mlp, tokens.end - tokens.begin, c.ffn_dim,
         now_->up.data() + tokens.begin * now_->up.width(),
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

void LayerPass::Run(float* stream, QkvObserver* observer) {
  const bool is_parallel = config().parallel_block;
  RunAttention(stream, observer != nullptr);
  if (observer != nullptr) {
    const QkvView view = View();
    observer->Observe(view);
    observer->ObserveOutputs(
        {view.layer_idx, view.n_tokens, view.positions, now_->attended.data()});
  }
  if (!is_parallel) {
    AddToStream(layer().attn_out_norm, &now_->attention_out, stream);
    std::copy_n(stream, n_tokens_ * config().hidden_dim, now_->middle.data());
  }
  RunMlp(stream);
  RunGate();
  MultiplyTokens(matrices_.down, layer().down_bias, &forward_.gated, &forward_.mlp_out);
  if (is_parallel) AddToStream(layer().attn_out_norm, &now_->attention_out, stream);
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
    RunGate();
    MultiplyTokens(matrices_.down, layer().down_bias, &forward_.gated, &forward_.mlp_out);
  }
  MultiplyTokensBack(matrices_.down,
                     GradientOfPart(layer().ffn_out_norm, &forward_.mlp_out, d_added), &back_.gated,
                     false);
  ForTokens([&](Range tokens) {
    const int64_t up = tokens.begin * now_->up.width();
    GateBack(c.mlp, tokens.end - tokens.begin, c.ffn_dim, now_->up.data() + up,
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
  ZeroQueryChannel(/*again=*/true, &back_.qk);
  CopyKeys(&back_.qk, &shown_.all_k_post);
  std::copy_n(shown_.far_k_post.data(), n_tokens_ * shown_.far_k_post.width(),
              shown_.far_k_pre.data());
  Turn(n_rows, negated, back_.qk.width(), back_.qk.data());
  Turn(c.n_kv_heads, negated, shown_.far_k_pre.width(), shown_.far_k_pre.data());
  if (c.dmc.has_value()) {
    ZeroDecisions(n_rows, back_.qk.width(), back_.qk.data());
    ZeroDecisions(c.n_kv_heads, shown_.far_k_pre.width(), shown_.far_k_pre.data());
  }
  ZeroQueryChannel(/*again=*/false, &back_.qk);
  CopyKeys(&back_.qk, &shown_.all_k_pre);
  if (!c.norms.of_qk) return;
  ForTokens([&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const int64_t q = t * now_->qk.width(), k = q + int64_t{c.n_heads} * c.head_dim;
      NormaliseBack(HeadNormOf(layer().q_norm), c.n_heads, now_->raw_qk.data() + q,
                    back_.qk.data() + q, false, back_.qk.data() + q);
      NormaliseBack(HeadNormOf(layer().k_norm), c.n_kv_heads, now_->raw_qk.data() + k,
                    back_.qk.data() + k, false, back_.qk.data() + k);
    }
  });
}

void LayerPass::RunAttentionBack(const float* d_added) {
  const ModelConfig& c = config();
  MultiplyTokensBack(matrices_.o,
                     GradientOfPart(layer().attn_out_norm, &now_->attention_out, d_added),
                     &back_.attended, false);
  attention_.RunBack(RowsThatAttend(), now_->attended.data(), back_.attended.data(),
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
  const float* const mlp_from = c.parallel_block ? stream : now_->middle.data();
  if (IsKept()) {
    CopyKeys(&now_->qk, &shown_.k_post_rows);
  } else {
    RunAttention(stream, /*shows_queries=*/false);
    if (!c.parallel_block) {
      std::copy_n(stream, n_values, now_->middle.data());
      AddToStream(layer().attn_out_norm, &now_->attention_out, now_->middle.data());
    }
    RunMlp(mlp_from);
  }
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
  NormaliseTokens(NormOf(layer().attn_norm), stream, forward_.normed.data());
  return {.layer_idx = layer_idx_,
          .n_tokens = n_tokens_,
          .k_post = shown_.far_k_post.data(),
          .k_pre = shown_.far_k_pre.data(),
          .v = shown_.far_v.data(),
          .k_post_rows = shown_.k_post_rows.data(),
          .k_pre_rows = now_->k_pre.data(),
          .v_rows = now_->v.data(),
          .projections = {.inputs = forward_.normed.data(),
                          .k = back_.qk.data() + int64_t{c.n_heads} * c.head_dim,
                          .k_stride = back_.qk.width(),
                          .v = back_.v.data()},
          .through_all = {.k_post = shown_.all_k_post.data(),
                          .k_pre = shown_.all_k_pre.data(),
                          .v = back_.v.data()}};
}

}  // namespace kvlathe
