#include "calibration/gradients/layer_pass.h"

#include <algorithm>
#include <numeric>

namespace kvlathe {

LayerPass::LayerPass(ModelWeights* weights, ThreadPool* pool, Isa isa, int newest,
                     int64_t kept_bytes)
    : weights_(weights),
      pool_(pool),
      kernels_(&GetElementwiseKernels(isa)),
      newest_(newest),
      products_(weights, pool, isa),
      norms_(weights->config()),
      feed_forward_(weights, &products_, kernels_),
      ropes_(weights->config().attention, weights->config().rope_dim()),
      attention_(pool, kernels_),
      kept_bytes_(kept_bytes) {}

Status LayerPass::PrepareKept() {
  const ModelConfig& c = config();
  const int64_t d = c.head_dim, q = c.n_heads * d, kv = c.n_kv_heads * d, hidden = c.hidden_dim;
  const std::pair<TokenRows KeptRows::*, int64_t> all[] = {
      {&KeptRows::raw_qk, c.norms.of_qk ? q + kv : 0},
      {&KeptRows::qk, q + kv},
      {&KeptRows::k_pre, kv},
      {&KeptRows::v, kv},
      {&KeptRows::attended, q},
      {&KeptRows::attention_out, hidden},
      {&KeptRows::middle, hidden}};
  int64_t n_bytes = 0;  // of a layer, but for its MLP
  const auto bytes_of = [&](int64_t width) {
    return n_tokens_ * width * static_cast<int64_t>(sizeof(float));
  };
  for (const auto& [unused, width] : all) n_bytes += bytes_of(width);
  int64_t n_kept = 0, n_left = kept_bytes_, widest_mlp = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    const int64_t of_mlp = feed_forward_.KeptWidth(l);
    widest_mlp = std::max(widest_mlp, of_mlp);
    n_left -= n_bytes + bytes_of(of_mlp);
    if (n_left >= 0) n_kept = l + 1;
  }
  kept_.resize(n_kept + 1);
  for (int64_t l = 0; l <= n_kept; ++l) {
    for (const auto& [rows, width] : all) {
      KVL_RETURN_IF_ERROR((kept_[l].*rows).Prepare(n_tokens_, width));
    }
    const int64_t of_mlp = l < n_kept ? feed_forward_.KeptWidth(static_cast<int>(l)) : widest_mlp;
    KVL_RETURN_IF_ERROR(kept_[l].up.Prepare(n_tokens_, of_mlp));
  }
  return OkStatus();
}

Status LayerPass::Prepare(int64_t n_tokens) {
  const ModelConfig& c = config();
  n_tokens_ = n_tokens;
  const int64_t d = c.head_dim, q = c.n_heads * d, kv = c.n_kv_heads * d, hidden = c.hidden_dim;
  const std::pair<TokenRows*, int64_t> all[] = {
      {&forward_.normed, hidden},  {&forward_.ffn_normed, hidden},
      {&forward_.mlp_out, hidden}, {&back_.normed, hidden},
      {&back_.qk, q + kv},         {&back_.v, kv},
      {&back_.attended, q},        {&back_.part, hidden},
      {&back_.ffn_normed, hidden}, {&shown_.far_k_post, kv},
      {&shown_.far_k_pre, kv},     {&shown_.far_v, kv},
      {&shown_.all_k_post, kv},    {&shown_.all_k_pre, kv},
      {&shown_.k_post_rows, kv},   {&shown_.q_post_rows, q},
      {&shown_.q_pre_rows, q},
  };
  KVL_RETURN_IF_ERROR(PrepareKept());
  int64_t widest = feed_forward_.WidestRow();
  for (const auto& [rows, width] : all) {
    KVL_RETURN_IF_ERROR(rows->Prepare(n_tokens, width));
    widest = std::max(widest, width);
  }
  KVL_RETURN_IF_ERROR(products_.Prepare(n_tokens, widest));
  KVL_RETURN_IF_ERROR(feed_forward_.Prepare());
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

Status LayerPass::Load(int layer_idx, PassWays ways) {
  const ModelConfig& c = config();
  now_ = &kept_[std::min<int64_t>(layer_idx, std::ssize(kept_) - 1)];
  const FloatTable& sink_logits = weights_->layer(layer_idx).sink_logits;
  KVL_RETURN_IF_ERROR(attention_.Prepare({.n_tokens = n_tokens_,
                                          .n_heads = c.n_heads,
                                          .n_kv_heads = c.n_kv_heads,
                                          .head_dim = c.head_dim,
                                          .window = c.attention.of(layer_idx).window,
                                          .newest = newest_,
                                          .scale = c.scale_of_scores(),
                                          .cap = c.score_cap,
                                          .sink_logits = sink_logits.data()}));
  if (layer_idx == layer_idx_ && (ways == PassWays::kForward || ways_ == PassWays::kBoth)) {
    return OkStatus();
  }
  layer_idx_ = -1;
  const LayerWeights& layer = weights_->layer(layer_idx);
  KVL_ASSIGN_OR_RETURN(values_, weights_->FoldValues(layer_idx, nullptr, pool_));
  KVL_RETURN_IF_ERROR(products_.Load(layer.qk, ways, &matrices_.qk));
  KVL_RETURN_IF_ERROR(products_.Load(values_->v, ways, &matrices_.v));
  KVL_RETURN_IF_ERROR(products_.Load(values_->o, ways, &matrices_.o));
  KVL_RETURN_IF_ERROR(feed_forward_.Load(layer_idx, ways));
  layer_idx_ = layer_idx;
  ways_ = ways;
  return OkStatus();
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

void LayerPass::NormaliseTokens(const RowNorm& norm, const float* x, float* y) {
  products_.ForTokens([&](Range tokens) {
    const int64_t first = tokens.begin * norm.n_dims;
    Normalise(*kernels_, norm, tokens.end - tokens.begin, x + first, y + first);
  });
}

void LayerPass::NormaliseTokensBack(const RowNorm& norm, const float* x, const float* dy,
                                    bool accumulate, float* dx) {
  products_.ForTokens([&](Range tokens) {
    const int64_t first = tokens.begin * norm.n_dims;
    NormaliseBack(norm, tokens.end - tokens.begin, x + first, dy + first, accumulate, dx + first);
  });
}

void LayerPass::ReadStream(const NormWeights& norm, const float* stream, TokenRows* to) {
  if (config().norms.of_inputs) return NormaliseTokens(norms_.OfStream(norm), stream, to->data());
  std::copy_n(stream, n_tokens_ * to->width(), to->data());
}

void LayerPass::ReadStreamBack(const NormWeights& norm, const float* stream, TokenRows* d_read,
                               float* gradient) {
  if (config().norms.of_inputs) {
    return NormaliseTokensBack(norms_.OfStream(norm), stream, d_read->data(), true, gradient);
  }
  const float* const d = d_read->data();
  for (int64_t i = 0; i < n_tokens_ * d_read->width(); ++i) gradient[i] += d[i];
}

void LayerPass::NormaliseHeads() {
  const ModelConfig& c = config();
  const RowNorm q_norm = norms_.OfHeads(layer().q_norm, c.n_heads);
  const RowNorm k_norm = norms_.OfHeads(layer().k_norm, c.n_kv_heads);
  const int64_t width = now_->qk.width(), k_at = int64_t{c.n_heads} * c.head_dim;
  std::copy_n(now_->qk.data(), n_tokens_ * width, now_->raw_qk.data());
  products_.ForTokens([&](Range tokens) {
    for (int64_t q = tokens.begin * width; q < tokens.end * width; q += width) {
      Normalise(*kernels_, q_norm, k_at / q_norm.n_dims, now_->raw_qk.data() + q,
                now_->qk.data() + q);
      Normalise(*kernels_, k_norm, (width - k_at) / k_norm.n_dims, now_->raw_qk.data() + q + k_at,
                now_->qk.data() + q + k_at);
    }
  });
}

void LayerPass::NormaliseHeadsBack() {
  const ModelConfig& c = config();
  const RowNorm q_norm = norms_.OfHeads(layer().q_norm, c.n_heads);
  const RowNorm k_norm = norms_.OfHeads(layer().k_norm, c.n_kv_heads);
  const int64_t width = now_->qk.width(), k_at = int64_t{c.n_heads} * c.head_dim;
  const float* const raw = now_->raw_qk.data();
  float* const d = back_.qk.data();
  products_.ForTokens([&](Range tokens) {
    for (int64_t q = tokens.begin * width; q < tokens.end * width; q += width) {
      NormaliseBack(q_norm, k_at / q_norm.n_dims, raw + q, d + q, false, d + q);
      NormaliseBack(k_norm, (width - k_at) / k_norm.n_dims, raw + q + k_at, d + q + k_at, false,
                    d + q + k_at);
    }
  });
}

void LayerPass::WeighTurnedQueries(TokenRows* qk) {
  const ModelConfig& c = config();
  const FloatTable& weights = layer().turned_query_weights;
  const AttentionKind& kind = c.attention.of(layer_idx_);
  if (weights.empty() && kind.query_growth == 0) return;
  products_.ForTokens([&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      float* const row = qk->data() + t * qk->width();
      const auto growth = static_cast<float>(kind.GrowthAt(static_cast<int>(t)));
      for (int i = 0; i < c.n_heads * c.head_dim; ++i) {
        row[i] *= growth * (weights.empty() ? 1 : weights.data()[i % c.head_dim]);
      }
    }
  });
}

void LayerPass::Turn(int n_heads, const float* sines, int64_t token_stride, float* rows) {
  const int rope_dim = config().rope_dim(), d = config().head_dim;
  if (rope_dim == 0) return;
  const RopeTable& rope = ropes_.of(layer_idx_);
  products_.ForTokens([&](Range tokens) {
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

void LayerPass::ZeroQueryChannel(bool again, TokenRows* qk) {
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
  products_.Multiply(matrices_.qk, layer().qk_bias, &forward_.normed, &now_->qk);
  products_.Multiply(matrices_.v, values_->v_bias, &forward_.normed, &now_->v);
  if (c.norms.of_qk) NormaliseHeads();
  if (c.dmc.has_value()) ZeroDecisions(n_rows, now_->qk.width(), now_->qk.data());
  ZeroQueryChannel(/*again=*/false, &now_->qk);
  CopyKeys(&now_->qk, &now_->k_pre);
  if (shows_queries) CopyColumns(&now_->qk, 0, &shown_.q_pre_rows);
  if (c.rope_dim() > 0) {
    Turn(n_rows, ropes_.of(layer_idx_).sin(0), now_->qk.width(), now_->qk.data());
  }
  WeighTurnedQueries(&now_->qk);
  if (c.dmc.has_value() && c.dmc->zeroes_after_rope) {
    ZeroDecisions(n_rows, now_->qk.width(), now_->qk.data());
  }
  ZeroQueryChannel(/*again=*/true, &now_->qk);
  CopyKeys(&now_->qk, &shown_.k_post_rows);
  if (shows_queries) CopyColumns(&now_->qk, 0, &shown_.q_post_rows);
}

void LayerPass::CopyColumns(TokenRows* from_rows, int64_t column, TokenRows* to) {
  const int64_t width = to->width(), stride = from_rows->width();
  const float* const from = from_rows->data() + column;
  products_.ForTokens([&](Range tokens) {
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
  ReadStream(layer().attn_norm, stream, &forward_.normed);
  ProjectRows(shows_queries);
  attention_.Run(RowsThatAttend(), now_->attended.data());
  products_.Multiply(matrices_.o, values_->o_bias, &now_->attended, &now_->attention_out);
}

void LayerPass::ReadForMlp(const float* from) {
  if (config().shared_norm) {
    std::copy_n(forward_.normed.data(), n_tokens_ * forward_.normed.width(),
                forward_.ffn_normed.data());
  } else {
    ReadStream(layer().ffn_norm, from, &forward_.ffn_normed);
  }
}

void LayerPass::RunMlp(const float* from) {
  ReadForMlp(from);
  feed_forward_.RunIn(&forward_.ffn_normed, &now_->up);
}

void LayerPass::AddToStream(const NormWeights& norm, TokenRows* part, float* stream) {
  float* added = part->data();
  if (config().norms.of_outputs) {
    added = back_.part.data();
    NormaliseTokens(norms_.OfOutput(norm), part->data(), added);
  }
  const int64_t width = config().hidden_dim;
  products_.ForTokens([&](Range tokens) {
    for (int64_t i = tokens.begin * width; i < tokens.end * width; ++i) stream[i] += added[i];
  });
}

Status LayerPass::Run(float* stream, QkvObserver* observer) {
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
  KVL_RETURN_IF_ERROR(feed_forward_.RunOut(&forward_.ffn_normed, &now_->up, &forward_.mlp_out));
  if (is_parallel) AddToStream(layer().attn_out_norm, &now_->attention_out, stream);
  AddToStream(layer().ffn_out_norm, &forward_.mlp_out, stream);
  return OkStatus();
}

const float* LayerPass::GradientOfPart(const NormWeights& norm, TokenRows* part,
                                       const float* d_added) {
  if (!config().norms.of_outputs) return d_added;
  NormaliseTokensBack(norms_.OfOutput(norm), part->data(), d_added, false, back_.part.data());
  return back_.part.data();
}

Status LayerPass::RunMlpBack(const float* d_added) {
  TokenRows* const from = &forward_.ffn_normed;
  if (config().norms.of_outputs) {
    KVL_RETURN_IF_ERROR(feed_forward_.RunOut(from, &now_->up, &forward_.mlp_out));
  }
  return feed_forward_.RunBack(from, &now_->up,
                               GradientOfPart(layer().ffn_out_norm, &forward_.mlp_out, d_added),
                               &back_.ffn_normed);
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
  WeighTurnedQueries(&back_.qk);
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
  if (c.norms.of_qk) NormaliseHeadsBack();
}

void LayerPass::RunAttentionBack(const float* d_added) {
  const ModelConfig& c = config();
  products_.MultiplyBack(matrices_.o,
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
  products_.MultiplyBack(matrices_.qk, back_.qk.data(), &back_.normed, false);
  products_.MultiplyBack(matrices_.v, back_.v.data(), &back_.normed, true);
}

StatusOr<RowGradients> LayerPass::RunBack(const float* stream, float* gradient) {
  const ModelConfig& c = config();
  const int64_t n_values = n_tokens_ * c.hidden_dim;
  const float* const mlp_from = c.parallel_block ? stream : now_->middle.data();
  if (IsKept()) {
    CopyKeys(&now_->qk, &shown_.k_post_rows);
    if (feed_forward_.ReadsAgain()) {
      ReadStream(layer().attn_norm, stream, &forward_.normed);
      ReadForMlp(mlp_from);
    }
  } else {
    RunAttention(stream, /*shows_queries=*/false);
    if (!c.parallel_block) {
      std::copy_n(stream, n_values, now_->middle.data());
      AddToStream(layer().attn_out_norm, &now_->attention_out, now_->middle.data());
    }
    RunMlp(mlp_from);
  }
  KVL_RETURN_IF_ERROR(RunMlpBack(gradient));
  const bool has_ffn_norm = !c.shared_norm;
  if (!c.parallel_block) {
    ReadStreamBack(layer().ffn_norm, mlp_from, &back_.ffn_normed, gradient);
  }
  RunAttentionBack(gradient);
  if (c.parallel_block && has_ffn_norm) {
    ReadStreamBack(layer().ffn_norm, mlp_from, &back_.ffn_normed, gradient);
  }
  if (c.shared_norm) {
    for (int64_t i = 0; i < n_values; ++i) back_.normed.data()[i] += back_.ffn_normed.data()[i];
  }
  ReadStreamBack(layer().attn_norm, stream, &back_.normed, gradient);
  ReadStream(layer().attn_norm, stream, &forward_.normed);
  return RowGradients{.layer_idx = layer_idx_,
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
