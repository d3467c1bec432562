#include "model/steps/experts.h"

#include "base/clock.h"
#include "model/steps/project.h"

namespace kvlathe {
namespace {

RouteRule::Score ScoreOf(ExpertsConfig::Score score) {
  switch (score) {
    case ExpertsConfig::Score::kSoftmax:
      return RouteRule::Score::kSoftmax;
    case ExpertsConfig::Score::kSigmoid:
      return RouteRule::Score::kSigmoid;
    case ExpertsConfig::Score::kSoftmaxOfChosen:
      return RouteRule::Score::kSoftmaxOfChosen;
    case ExpertsConfig::Score::kSparseMixer:
      break;
  }
  return RouteRule::Score::kSparseMixer;
}

RouteRule RuleOf(const ExpertsConfig& c) {
  return {.score = ScoreOf(c.score),
          .n_used = c.n_used,
          .normalises = c.normalises,
          .min_sum = c.min_sum,
          .adds_min_sum = c.adds_min_sum,
          .scale = c.scale,
          .n_groups = c.n_groups,
          .n_used_groups = c.n_used_groups,
          .groups_sum_two = c.groups_sum_two,
          .mixer_jitter = c.mixer_jitter};
}

}  // namespace

RoutePlan RouteOf(const ExpertsConfig& config, const ExpertWeights& weights, const ObjectPlace& x,
                  int64_t n_rows) {
  return {.rule = RuleOf(config),
          .n_experts = config.n_experts,
          .n_rows = n_rows,
          .x = x,
          .router = weights.router.id(),
          .has_gate_row = config.has_shared_gate,
          .bias = weights.router_bias.place(),
          .choice_bias = weights.choice_bias.place()};
}

void ExpertRows::Assign(std::span<const int32_t> experts, int n_used, int n_experts) {
  first_of_.assign(n_experts + 1, 0);
  for (const int32_t e : experts) ++first_of_[e + 1];
  groups_.clear();
  for (int e = 0; e < n_experts; ++e) {
    const int64_t n_rows = first_of_[e + 1];
    if (n_rows > 0) groups_.push_back({e, first_of_[e], n_rows});
    first_of_[e + 1] += first_of_[e];
  }
  tokens_.resize(experts.size());
  rows_.resize(experts.size());
  for (int64_t i = 0; i < std::ssize(experts); ++i) {
    const int64_t row = first_of_[experts[i]]++;
    rows_[i] = row;
    tokens_[row] = i / n_used;
  }
}

void ExpertsStep::RunShared(ForwardState* state) {
  const ExpertWeights& w = layer_.weights->experts;
  Activations& a = *state->activations;
  const ExpertsConfig& c = *layer_.config->experts;
  const FloatTable no_bias;
  const DType type = a.types.activations;
  const int64_t n_routed = a.n_tokens * c.n_used;
  {
    const ScopedTimer timer(&state->profile->linear);
    state->backend->Project(
        ProductOf(w.shared_in, no_bias, a.n_tokens, a.normed.place(), type, a.mlp_in.place()));
  }
  {
    const ScopedTimer timer(&state->profile->other);
    state->backend->Gate({.kind = GateOf(layer_.config->mlp),
                          .x = a.mlp_in.place(),
                          .n_rows = a.n_tokens,
                          .ffn_dim = c.shared_ffn_dim,
                          .out_type = type,
                          .out = a.gated.place()});
  }
  const ScopedTimer timer(&state->profile->linear);
  const int64_t behind = n_routed * layer_.config->hidden_dim * int64_t{sizeof(float)};
  state->backend->Project(ProductOf(w.shared_down, no_bias, a.n_tokens, a.gated.place(), type,
                                    a.routed_out.place() + behind));
}

void ExpertsStep::RunExperts(ForwardState* state) {
  const ExpertWeights& w = layer_.weights->experts;
  Activations& a = *state->activations;
  const ExpertsConfig& c = *layer_.config->experts;
  const DType type = a.types.activations;
  const int64_t hidden = layer_.config->hidden_dim, n_rows = std::ssize(rows_.tokens());
  // All experts of a single token read its row where it stands.
  const bool is_gathered = a.n_tokens > 1;
  if (is_gathered) {
    const ScopedTimer timer(&state->profile->other);
    state->backend->GatherRows({.x = a.normed.place(),
                                .to = a.routed_in.place(),
                                .row_bytes = hidden * SizeOf(type),
                                .from = rows_.tokens()});
  }
  const auto multiply = [&](const std::vector<Weight>& matrices, const FloatTable& bias,
                            ExpertProductsPlan plan, bool shares_row) {
    plan.n_in = matrices.front().n_in();
    plan.n_out = matrices.front().n_out();
    plan.x_type = type;
    const ScopedTimer timer(&state->profile->linear);
    items_.clear();
    for (const ExpertGroup& group : rows_.groups()) {
      const int64_t offset = group.expert_idx * plan.n_out * int64_t{sizeof(float)};
      items_.push_back({.w = matrices[group.expert_idx].id(),
                        .bias = bias.place().is_null() ? bias.place() : bias.place() + offset,
                        .first_x = shares_row ? 0 : group.first,
                        .first_y = group.first,
                        .n_rows = group.n_rows});
    }
    plan.items = items_;
    state->backend->ProjectExperts(plan);
  };
  multiply(w.in, w.in_bias,
           {.x = is_gathered ? a.routed_in.place() : a.normed.place(),
            .n_x_rows = is_gathered ? n_rows : 1,
            .y = a.mlp_in.place()},
           !is_gathered);
  {
    const ScopedTimer timer(&state->profile->other);
    state->backend->Gate({.kind = GateOf(layer_.config->mlp),
                          .x = a.mlp_in.place(),
                          .n_rows = n_rows,
                          .ffn_dim = c.ffn_dim,
                          .out_type = type,
                          .out = a.gated.place()});
  }
  multiply(w.down, w.down_bias,
           {.x = a.gated.place(), .n_x_rows = n_rows, .y = a.routed_out.place()}, false);
}

void ExpertsStep::AddRows(const RoutedRows& routed, ForwardState* state) {
  Activations& a = *state->activations;
  const ExpertsConfig& c = *layer_.config->experts;
  const bool has_shared = c.shared_ffn_dim > 0;
  const int64_t n_routed = std::ssize(rows_.rows());
  added_rows_.clear();
  added_weights_.clear();
  for (int64_t t = 0; t < a.n_tokens; ++t) {
    for (int64_t i = t * c.n_used; i < (t + 1) * c.n_used; ++i) {
      added_rows_.push_back(rows_.rows()[i]);
      added_weights_.push_back(routed.weights[i]);
    }
    if (!has_shared) continue;
    added_rows_.push_back(n_routed + t);
    added_weights_.push_back(c.has_shared_gate ? routed.gates[t] : 1.0f);
  }
  const bool is_apart = layer_.config->norms.of_outputs || layer_.is_parted;
  {
    const ScopedTimer timer(&state->profile->other);
    state->backend->AddWeighted({.x = a.routed_out.place(),
                                 .n_x_rows = n_routed + (has_shared ? a.n_tokens : 0),
                                 .rows = added_rows_,
                                 .weights = added_weights_,
                                 .n_rows = a.n_tokens,
                                 .n_each = c.n_used + (has_shared ? 1 : 0),
                                 .n_dims = layer_.config->hidden_dim,
                                 .y = is_apart ? a.added.place() : a.hidden.place(),
                                 .accumulate = !is_apart});
  }
  if (is_apart) AddSumToStream(layer_, layer_.weights->ffn_out_norm, state);
}

Status ExpertsStep::Run(ForwardState* state) {
  Activations& a = *state->activations;
  const ExpertWeights& w = layer_.weights->experts;
  const ExpertsConfig& c = *layer_.config->experts;
  const MachineBuffer& x = a.types.activations == DType::kF32 ? a.normed : a.routed_by;
  RoutedRows routed;
  {
    const ScopedTimer timer(&state->profile->linear);
    routed = state->backend->Route(RouteOf(c, w, x.place(), a.n_tokens));
  }
  rows_.Assign(routed.experts, c.n_used, c.n_experts);
  if (c.shared_ffn_dim > 0) RunShared(state);
  RunExperts(state);
  AddRows(routed, state);
  return OkStatus();
}

}  // namespace kvlathe
