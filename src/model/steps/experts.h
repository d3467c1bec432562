// Routes tokens to experts and adds what these make of them to the residual stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Plans which experts n_rows rows at `x` go to, [n_rows, hidden_dim] F32.
RoutePlan RouteOf(const ExpertsConfig& config, const ExpertWeights& weights, const ObjectPlace& x,
                  int64_t n_rows);

// An expert that some token goes to, and its rows among those of all experts.
struct ExpertGroup {
  int expert_idx = 0;
  int64_t first = 0;
  int64_t n_rows = 0;
};

// Which rows of a step go to which experts, grouped by expert.
class ExpertRows {
 public:
  // experts [n_tokens, n_used], those of a token all different.
  void Assign(std::span<const int32_t> experts, int n_used, int n_experts);

  std::span<const ExpertGroup> groups() const { return groups_; }
  std::span<const int64_t> tokens() const { return tokens_; }  // of every row
  std::span<const int64_t> rows() const { return rows_; }      // [n_tokens, n_used]

 private:
  std::vector<ExpertGroup> groups_;
  std::vector<int64_t> tokens_, rows_, first_of_;
};

// The feed-forward part of a layer with experts: Activations::normed, and the same rows in F32 for
// the router.
class ExpertsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "experts"; }
  Status Run(ForwardState* state) override;

 private:
  void RunShared(ForwardState* state);
  void RunExperts(ForwardState* state);
  void AddRows(const RoutedRows& routed, ForwardState* state);

  ExpertRows rows_;
  std::vector<ExpertProductsPlan::Item> items_;
  std::vector<int64_t> added_rows_;
  std::vector<float> added_weights_;
};

}  // namespace kvlathe
