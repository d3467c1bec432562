#include "calibration/gradients/experts_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "calibration/gradients/route_gradient.h"

namespace kvlathe {

int64_t ExpertsPass::WidestRow() const {
  const int64_t widest = std::max(config().ffn_dim, config().shared_ffn_dim);
  return std::max<int64_t>(2 * widest, config().n_experts + 1);
}

Status ExpertsPass::Prepare() {
  const int64_t n_tokens = products_.n_tokens(), hidden = weights_.config().hidden_dim;
  const int64_t ffn = std::max(config().ffn_dim, config().shared_ffn_dim);
  const int64_t n_logits = config().n_experts + (config().has_shared_gate ? 1 : 0);
  const std::pair<TokenRows*, int64_t> all[] = {
      {&x_, hidden},        {&up_, 2 * ffn},       {&gated_, ffn},   {&out_, hidden},
      {&d_x_, hidden},      {&d_up_, 2 * ffn},     {&d_gated_, ffn}, {&d_out_, hidden},
      {&logits_, n_logits}, {&d_logits_, n_logits}};
  for (const auto& [rows, width] : all) KVL_RETURN_IF_ERROR(rows->Prepare(n_tokens, width));
  ones_.assign(n_tokens, 1.0f);
  all_tokens_.resize(n_tokens);
  std::iota(all_tokens_.begin(), all_tokens_.end(), 0);
  return routed_by_.EnsureSize(&weights_.machine().memory(),
                               n_tokens * hidden * SizeOf(DType::kF32), "rows of a window");
}

Status ExpertsPass::Load(int layer_idx) {
  layer_idx_ = layer_idx;
  return products_.Load(experts().router, PassWays::kBoth, &router_);
}

ExpertsPass::Part ExpertsPass::PartOf(int expert_idx) const {
  const ExpertWeights& e = experts();
  const Weight &in = e.in[expert_idx], &down = e.down[expert_idx];
  return {.in = &in,
          .down = &down,
          .in_bias = RowBias(e.in_bias, expert_idx * in.n_out()),
          .down_bias = RowBias(e.down_bias, expert_idx * down.n_out()),
          .ffn_dim = config().ffn_dim};
}

ExpertsPass::Part ExpertsPass::SharedPart() const {
  return {.in = &experts().shared_in,
          .down = &experts().shared_down,
          .in_bias = {},
          .down_bias = {},
          .ffn_dim = config().shared_ffn_dim};
}

RowGate ExpertsPass::GateOf(const Part& part) const {
  return {.mlp = weights_.config().mlp, .ffn_dim = part.ffn_dim};
}

void ExpertsPass::Route(TokenRows* from) {
  Machine& machine = weights_.machine();
  const int64_t n_tokens = products_.n_tokens();
  machine.memory().Upload(
      routed_by_.place(),
      std::as_bytes(std::span(from->data(), static_cast<size_t>(n_tokens * from->width()))));
  routed_ = machine.backend().Route(RouteOf(config(), experts(), routed_by_.place(), n_tokens));
  rows_.Assign(routed_.experts, config().n_used, config().n_experts);
  row_weights_.resize(routed_.weights.size());
  for (size_t i = 0; i < row_weights_.size(); ++i) {
    row_weights_[rows_.rows()[i]] = routed_.weights[i];
  }
}

Status ExpertsPass::RunPart(const Part& part, const Rows& rows, PassWays ways) {
  const int64_t hidden = weights_.config().hidden_dim;
  KVL_RETURN_IF_ERROR(products_.Load(*part.in, ways, &in_));
  KVL_RETURN_IF_ERROR(products_.Load(*part.down, ways, &down_));
  for (int64_t i = 0; i < rows.n; ++i) {
    std::copy_n(rows.from + rows.tokens[i] * hidden, hidden, x_.data() + i * hidden);
  }
  products_.MultiplySome(in_, part.in_bias, rows.n, x_.data(), up_.data());
  Gate(kernels_, GateOf(part), rows.n, up_.data(), gated_.data());
  products_.MultiplySome(down_, part.down_bias, rows.n, gated_.data(), out_.data());
  return OkStatus();
}

Status ExpertsPass::Run(TokenRows* from, TokenRows* to) {
  const int64_t hidden = to->width(), n_tokens = products_.n_tokens();
  Route(from);
  std::fill_n(to->data(), n_tokens * hidden, 0.0f);
  const auto add = [&](const Rows& rows, const float* weights) {
    for (int64_t i = 0; i < rows.n; ++i) {
      float* const row = to->data() + rows.tokens[i] * hidden;
      for (int64_t c = 0; c < hidden; ++c) row[c] += weights[i] * out_.data()[i * hidden + c];
    }
  };
  for (const ExpertGroup& group : rows_.groups()) {
    const Rows rows = {&rows_.tokens()[group.first], group.n_rows, from->data()};
    KVL_RETURN_IF_ERROR(RunPart(PartOf(group.expert_idx), rows, PassWays::kForward));
    add(rows, &row_weights_[group.first]);
  }
  if (config().shared_ffn_dim == 0) return OkStatus();
  const Rows rows = {all_tokens_.data(), n_tokens, from->data()};
  KVL_RETURN_IF_ERROR(RunPart(SharedPart(), rows, PassWays::kForward));
  add(rows, config().has_shared_gate ? routed_.gates.data() : ones_.data());
  return OkStatus();
}

Status ExpertsPass::RunPartBack(const Part& part, const Rows& rows, const float* weights,
                                const float* d_to, double* d_weights, TokenRows* d_from) {
  const int64_t hidden = d_from->width();
  KVL_RETURN_IF_ERROR(RunPart(part, rows, PassWays::kBoth));
  for (int64_t i = 0; i < rows.n; ++i) {
    const float* const d = d_to + rows.tokens[i] * hidden;
    const float* const out = out_.data() + i * hidden;
    d_weights[i] = 0;
    for (int64_t c = 0; c < hidden; ++c) {
      d_weights[i] += double{d[c]} * out[c];
      d_out_.data()[i * hidden + c] = weights[i] * d[c];
    }
  }
  products_.MultiplySomeBack(down_, rows.n, d_out_.data(), d_gated_.data(), false);
  GateBack(GateOf(part), rows.n, up_.data(), d_gated_.data(), d_up_.data());
  products_.MultiplySomeBack(in_, rows.n, d_up_.data(), d_x_.data(), false);
  for (int64_t i = 0; i < rows.n; ++i) {
    float* const row = d_from->data() + rows.tokens[i] * hidden;
    for (int64_t c = 0; c < hidden; ++c) row[c] += d_x_.data()[i * hidden + c];
  }
  return OkStatus();
}

void ExpertsPass::RouterBack(TokenRows* from, TokenRows* d_from) {
  const ExpertsConfig& c = config();
  const int64_t n_tokens = products_.n_tokens(), n_logits = logits_.width();
  const FloatTable& bias = experts().router_bias;
  products_.MultiplySome(router_, {}, n_tokens, from->data(), logits_.data());
  std::fill_n(d_logits_.data(), n_tokens * n_logits, 0.0f);
  std::vector<double> d_weights(c.n_used);
  for (int64_t t = 0; t < n_tokens; ++t) {
    float* const logits = logits_.data() + t * n_logits;
    float* const d_logits = d_logits_.data() + t * n_logits;
    for (size_t e = 0; e < bias.size(); ++e) logits[e] += bias[e];
    for (int i = 0; i < c.n_used; ++i) d_weights[i] = d_weights_[rows_.rows()[t * c.n_used + i]];
    const auto n_experts = static_cast<size_t>(c.n_experts);
    RouteBack(c, {logits, n_experts}, std::span(routed_.experts).subspan(t * c.n_used, c.n_used),
              d_weights, {d_logits, n_experts});
    if (!c.has_shared_gate) continue;
    const double gate = routed_.gates[t];
    d_logits[n_experts] = static_cast<float>(d_gates_[t] * gate * (1 - gate));
  }
  products_.MultiplyBack(router_, d_logits_.data(), d_from, true);
}

Status ExpertsPass::RunBack(TokenRows* from, const float* d_to, TokenRows* d_from) {
  const int64_t n_tokens = products_.n_tokens();
  Route(from);
  std::fill_n(d_from->data(), n_tokens * d_from->width(), 0.0f);
  d_weights_.resize(row_weights_.size());
  for (const ExpertGroup& group : rows_.groups()) {
    const Rows rows = {&rows_.tokens()[group.first], group.n_rows, from->data()};
    KVL_RETURN_IF_ERROR(RunPartBack(PartOf(group.expert_idx), rows, &row_weights_[group.first],
                                    d_to, &d_weights_[group.first], d_from));
  }
  d_gates_.resize(n_tokens);
  if (config().shared_ffn_dim > 0) {
    const Rows rows = {all_tokens_.data(), n_tokens, from->data()};
    const float* const gates = config().has_shared_gate ? routed_.gates.data() : ones_.data();
    KVL_RETURN_IF_ERROR(RunPartBack(SharedPart(), rows, gates, d_to, d_gates_.data(), d_from));
  }
  RouterBack(from, d_from);
  return OkStatus();
}

}  // namespace kvlathe
