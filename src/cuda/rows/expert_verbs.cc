// Experts of RowVerbs, but for their products (row_products.cc).
#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "cuda/kernels/rows/expert_rows.h"
#include "cuda/kernels/rows/route.h"
#include "cuda/rows/first_experts.h"
#include "cuda/rows/row_verbs.h"

namespace kvlathe {
namespace {

cuda::RouteScore RouteScoreOf(RouteRule::Score score) {
  switch (score) {
    case RouteRule::Score::kSoftmax:
      return cuda::RouteScore::kSoftmax;
    case RouteRule::Score::kSigmoid:
      return cuda::RouteScore::kSigmoid;
    case RouteRule::Score::kSoftmaxOfChosen:
      return cuda::RouteScore::kSoftmaxOfChosen;
    case RouteRule::Score::kSparseMixer:
      break;
  }
  return cuda::RouteScore::kSparseMixer;
}

cuda::RouteNumbers NumbersOf(const RouteRule& rule) {
  return {.score = RouteScoreOf(rule.score),
          .n_used = rule.n_used,
          .normalises = rule.normalises,
          .min_sum = rule.min_sum,
          .adds_min_sum = rule.adds_min_sum,
          .scale = rule.scale,
          .n_groups = rule.n_groups,
          .n_used_groups = rule.n_used_groups,
          .groups_sum_two = rule.groups_sum_two,
          .mixer_jitter = rule.mixer_jitter};
}

}  // namespace

bool RowVerbs::Takes(const RoutePlan& plan) { return plan.n_experts <= cuda::kMostRoutedExperts; }

// Logits are products that give a row the bits that it has alone. The row of the gates has no bias,
// so it is a product of its own.
void RowVerbs::FindLogits(const RoutePlan& plan, float* logits) {
  const CudaMatrix& router = *residents_.At(plan.router);
  const cuda::RowProduct of_experts = {.w = router.data,
                                       .w_row_bytes = router.row_bytes,
                                       .x = device_.At(plan.x),
                                       .x_stride = router.n_in,
                                       .y = logits,
                                       .y_stride = router.n_out,
                                       .bias = device_.As<const float>(plan.bias),
                                       .n_rows = static_cast<int>(plan.n_rows),
                                       .n_out = plan.n_experts,
                                       .n_in = static_cast<int>(router.n_in)};
  cuda::RowProduct of_gates = of_experts;
  of_gates.w += plan.n_experts * router.row_bytes;
  of_gates.y = logits + plan.n_experts;
  of_gates.bias = nullptr;
  of_gates.n_out = 1;
  const cuda::RowProduct both[] = {of_experts, of_gates};
  cuda::MultiplyRows(stream_.get(), {.type = router.type},
                     std::span(both).first(plan.has_gate_row ? 2 : 1));
}

RoutedRows RowVerbs::Route(const RoutePlan& plan) {
  const int64_t n_logits = plan.n_experts + (plan.has_gate_row ? 1 : 0);
  const int64_t n_chosen = plan.n_rows * plan.rule.n_used;
  const int64_t n_gates = plan.has_gate_row ? plan.n_rows : 0;
  RoutedRows routed = ToFirstExperts(plan);
  if (plan.n_rows == 0) return routed;
  // Experts, weights and gates, and logits behind them.
  const int64_t result_bytes = (2 * n_chosen + n_gates) * int64_t{sizeof(float)};
  const int64_t logits_at = RoundUp(result_bytes, int64_t{16});
  const int64_t n_bytes = logits_at + plan.n_rows * n_logits * int64_t{sizeof(float)};
  if (!Hold(&routed_, n_bytes, "logits of routers")) return routed;
  auto* const experts = device_.As<int32_t>(routed_.place());
  auto* const weights = reinterpret_cast<float*>(experts + n_chosen);
  auto* const logits = device_.As<float>(routed_.place() + logits_at);
  FindLogits(plan, logits);
  cuda::Route(stream_.get(), {.rule = NumbersOf(plan.rule),
                              .n_experts = plan.n_experts,
                              .n_rows = static_cast<int>(plan.n_rows),
                              .logits = logits,
                              .n_logits = static_cast<int>(n_logits),
                              .choice_bias = device_.As<const float>(plan.choice_bias),
                              .experts = experts,
                              .weights = weights,
                              .gates = n_gates > 0 ? weights + n_chosen : nullptr});
  std::vector<std::byte> results(result_bytes);
  device_.Download(routed_.place(), results);
  std::memcpy(routed.experts.data(), results.data(), n_chosen * sizeof(int32_t));
  std::memcpy(routed.weights.data(), &results[n_chosen * sizeof(int32_t)],
              n_chosen * sizeof(float));
  if (n_gates > 0) {
    std::memcpy(routed.gates.data(), &results[2 * n_chosen * sizeof(float)],
                n_gates * sizeof(float));
  }
  // Of a GPU that has failed, which Finish tells.
  const auto is_none = [&](int32_t e) { return e < 0 || e >= plan.n_experts; };
  return std::ranges::any_of(routed.experts, is_none) ? ToFirstExperts(plan) : routed;
}

void RowVerbs::GatherRows(const GatherRowsPlan& plan) {
  const int64_t* const from = stream_.Send(plan.from);
  if (from == nullptr) return;
  cuda::GatherRows(stream_.get(), {.x = device_.At(plan.x),
                                   .to = device_.At(plan.to),
                                   .row_bytes = plan.row_bytes,
                                   .from = from,
                                   .n_rows = std::ssize(plan.from)});
}

void RowVerbs::AddWeighted(const WeightedRowsPlan& plan) {
  const int64_t* const rows = stream_.Send(plan.rows);
  const float* const weights = stream_.Send(plan.weights);
  if (rows == nullptr || weights == nullptr) return;
  cuda::AddWeighted(stream_.get(), {.x = device_.As<const float>(plan.x),
                                    .rows = rows,
                                    .weights = weights,
                                    .n_rows = plan.n_rows,
                                    .n_each = plan.n_each,
                                    .n_dims = plan.n_dims,
                                    .y = device_.As<float>(plan.y),
                                    .accumulate = plan.accumulate});
}

}  // namespace kvlathe
