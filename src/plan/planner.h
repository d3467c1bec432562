// Makes the plans of one model's caches. What has to be found for one spec, such as the analysis of
// a basis, serves all others.
#pragma once

#include <optional>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "base/status.h"
#include "kv/spec/spec.h"
#include "plan/basis_analyses.h"
#include "plan/cache_plan.h"
#include "plan/model_facts.h"
#include "plan/plan_source.h"

namespace kvlathe {

// What the spec alone, or the shape of the model, rules out: known before weights are read and
// before a calibration, which takes long. Errors are printable, name the spec and say what to do
// instead.
Status CheckSpec(const Spec& spec, const ModelFacts& model);

class CachePlanner {
 public:
  // The source outlives the planner.
  CachePlanner(const ModelFacts& model, PlanSource* source)
      : model_(model), source_(source), analyses_(model, source) {}

  // CheckSpec, and whether there is what its ranks are to be chosen by.
  Status Check(const Spec& spec);
  // Everything that the spec means for this model. With a rate, for specs with resident=full,
  // sequences that choose none have that. Plans that offer rates hold on to the planner, which
  // outlives them and the models that are made of them.
  StatusOr<CachePlan> MakePlan(const Spec& spec, std::optional<double> rate = std::nullopt);
  // kv_fraction at the model's full context, as `ratio` means it, without any maps.
  StatusOr<double> FractionOf(const Spec& spec);
  // The maps of a spec with a calibrated basis, cut to the ranks; of all dimensions where they stay
  // resident.
  StatusOr<ModelBasis> BasisAt(const Spec& spec, const RankAllocation& allocation);

  BasisAnalyses& analyses() { return analyses_; }

 private:
  StatusOr<RankAllocation> ChooseRanks(const Spec& spec, std::optional<double> rate);
  StatusOr<ModelBasis> DrawnBasis(const Spec& spec);
  // Of a basis whose maps sequences find themselves: these ranks, and what the maps are found from.
  StatusOr<ModelBasis> OnlineBasis(const Spec& spec, const std::vector<HeadRanks>& ranks);
  Status AddBasis(const Spec& spec, std::optional<double> rate, PlanParts* parts);
  Status AddCodebooks(const Spec& spec, PlanParts* parts);

  ModelFacts model_;
  PlanSource* source_;
  BasisAnalyses analyses_;
};

}  // namespace kvlathe
