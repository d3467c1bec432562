// Turns queries and keys to their positions, and maps them to the basis of the cache.
#pragma once

#include <span>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Plans the angles of a layer at these tokens for a layer in which every key turns; it has no heads
// yet.
RotatePlan TurnsOf(const Layer& layer, std::span<const TokenPlace> tokens);

// Makes the rows of LayerRows::Queries, WholeQueries, Keys and WholeKeys of the product of W_Q and
// W_K.
class RotateStep : public LayerStep {
 public:
  // Without `turns_queries` it makes rows of keys alone.
  explicit RotateStep(const Layer* layer, bool turns_queries = true)
      : LayerStep(layer), turns_queries_(turns_queries) {}
  std::string_view name() const override { return "rotate and map"; }
  Status Run(ForwardState* state) override;

 private:
  // kv_head_idx: of the model.
  HeadTurn TurnOf(int kv_head_idx, Activations* a) const;

  bool turns_queries_;
  std::vector<HeadTurn> heads_;
};

// Adds the queries behind the sinks to the sums of caches that will find a basis by them.
class GatherQueriesStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "gather queries"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<GramPlan> grams_;
};

}  // namespace kvlathe
