// Where rows go when a GPU has failed, until Finish tells of it.
#pragma once

#include "machine/expert_plans.h"

namespace kvlathe {

// The first experts, with weights of 0, so that plans stay possible.
inline RoutedRows ToFirstExperts(const RoutePlan& plan) {
  RoutedRows routed;
  for (int64_t i = 0; i < plan.n_rows * plan.rule.n_used; ++i) {
    routed.experts.push_back(static_cast<int32_t>(i % plan.rule.n_used));
  }
  routed.weights.resize(routed.experts.size());
  if (plan.has_gate_row) routed.gates.resize(plan.n_rows);
  return routed;
}

}  // namespace kvlathe
