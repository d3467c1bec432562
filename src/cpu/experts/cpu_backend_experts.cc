// Experts: which of them rows go to, and products with their matrices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/experts/route_row.h"

namespace kvlathe {

RoutedRows CpuBackend::Route(const RoutePlan& plan) {
  const CpuAccess own(*memory_);
  const PackedMatrix& router = *residents_.At(plan.router);
  const int64_t n_logits = router.n_out();
  const int n_used = plan.rule.n_used;
  router_logits_.resize(std::max<size_t>(router_logits_.size(), plan.n_rows * n_logits));
  linear_.Run({.w = &router,
               .n_rows = plan.n_rows,
               .x_type = DType::kF32,
               .x = own.At(plan.x),
               .x_stride = router.n_in(),
               .y = router_logits_.data(),
               .y_stride = n_logits,
               .is_repeatable = true});
  const auto* const bias = own.As<const float>(plan.bias);
  const auto* const choice_bias = own.As<const float>(plan.choice_bias);
  RoutedRows routed;
  routed.experts.resize(plan.n_rows * n_used);
  routed.weights.resize(plan.n_rows * n_used);
  routed.gates.resize(plan.has_gate_row ? plan.n_rows : 0);
  ForRowShares(plan.n_rows, [&](Range rows) {
    RowRouter router_of_rows(plan.rule, plan.n_experts, choice_bias);
    for (int64_t t = rows.begin; t < rows.end; ++t) {
      float* const logits = &router_logits_[t * n_logits];
      for (int e = 0; bias != nullptr && e < plan.n_experts; ++e) logits[e] += bias[e];
      router_of_rows.Route(logits, &routed.experts[t * n_used], &routed.weights[t * n_used]);
      if (plan.has_gate_row) routed.gates[t] = 1 / (1 + std::exp(-logits[plan.n_experts]));
    }
  });
  return routed;
}

void CpuBackend::GatherRows(const GatherRowsPlan& plan) {
  const CpuAccess own(*memory_);
  const std::byte* const x = own.At(plan.x);
  std::byte* const to = own.At(plan.to);
  ForRowShares(std::ssize(plan.from), [&](Range rows) {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      std::memcpy(to + i * plan.row_bytes, x + plan.from[i] * plan.row_bytes, plan.row_bytes);
    }
  });
}

void CpuBackend::ProjectExperts(const ExpertProductsPlan& plan) {
  const CpuAccess own(*memory_);
  std::vector<GroupedProducts::Item> items;
  items.reserve(plan.items.size());
  for (const ExpertProductsPlan::Item& item : plan.items) {
    items.push_back({.w = residents_.At(item.w),
                     .bias = own.As<const float>(item.bias),
                     .first_x = item.first_x,
                     .first_y = item.first_y,
                     .n_rows = item.n_rows});
  }
  linear_.RunGrouped({.items = items,
                      .x_type = plan.x_type,
                      .x = own.At(plan.x),
                      .n_x_rows = plan.n_x_rows,
                      .y = own.As<float>(plan.y)});
}

void CpuBackend::AddWeighted(const WeightedRowsPlan& plan) {
  const CpuAccess own(*memory_);
  const auto* const x = own.As<const float>(plan.x);
  auto* const y = own.As<float>(plan.y);
  ForRowShares(plan.n_rows, [&](Range rows) {
    std::vector<float> sum(plan.n_dims);
    for (int64_t t = rows.begin; t < rows.end; ++t) {
      for (int64_t k = 0; k < plan.n_each; ++k) {
        const float weight = plan.weights[t * plan.n_each + k];
        const float* const row = x + plan.rows[t * plan.n_each + k] * plan.n_dims;
        if (k == 0) {
          for (int64_t i = 0; i < plan.n_dims; ++i) sum[i] = weight * row[i];
        } else {
          for (int64_t i = 0; i < plan.n_dims; ++i) sum[i] += weight * row[i];
        }
      }
      float* const to = y + t * plan.n_dims;
      if (plan.accumulate) {
        for (int64_t i = 0; i < plan.n_dims; ++i) to[i] += sum[i];
      } else {
        std::copy(sum.begin(), sum.end(), to);
      }
    }
  });
}

}  // namespace kvlathe
