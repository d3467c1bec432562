// Tests that make models of plans put together by hand share this.
#pragma once

#include <memory>
#include <utility>

#include "model/model.h"
#include "model/model_facts.h"
#include "plan/cache_plan.h"

namespace kvlathe {

// The parts of a spec with these maps; null: none.
inline PlanParts PartsOf(const Spec& spec, const ModelBasis* basis) {
  PlanParts parts = PartsOf(spec);
  if (basis != nullptr) parts.basis = *basis;
  return parts;
}

// With these maps and nothing sealed or dropped; null: the uncompressed cache.
inline PlanParts PartsOf(const ModelBasis* basis, int n_sink) {
  PlanParts parts{.n_sink = n_sink};
  if (basis != nullptr) parts.basis = *basis;
  return parts;
}

// Errors are those of the plan, or of the model.
inline StatusOr<std::unique_ptr<Model>> CreateModel(std::shared_ptr<ModelWeights> weights,
                                                    PlanParts parts) {
  const ModelFacts facts = FactsOf(weights->config(), weights->types().rows);
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, AssemblePlan(facts, std::move(parts)));
  return Model::Create(std::move(weights), plan);
}

}  // namespace kvlathe
