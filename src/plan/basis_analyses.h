// Keeps the bases of a model at full width, by method and options. Each is found once, when a spec
// first needs it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "analysis/bases/basis_methods.h"
#include "kv/spec/spec.h"
#include "plan/model_facts.h"
#include "plan/plan_source.h"

namespace kvlathe {

// The method by which the spec's basis is found before a prompt. Null without such a basis.
const BasisMethod* BasisMethodOf(const Spec& spec);

// The options, other than ranks, with which a spec with a stage on the basis axis wants its bases
// of a model.
BasisOptions BasisOptionsOf(const Spec& spec, const ModelFacts& model);
// The form in which the caches of this spec and model hold keys.
Keys KeysOf(const Spec& spec, const ModelFacts& model);

class BasisAnalyses {
 public:
  // The source outlives this.
  BasisAnalyses(const ModelFacts& model, PlanSource* source) : model_(model), source_(source) {}

  // The analysis for a spec whose basis is found before a prompt. It lives as long as this.
  StatusOr<const BasisAnalysis*> Of(const Spec& spec);
  // What that is made from.
  StatusOr<const CalibrationStatistics*> StatisticsOf(const Spec& spec);
  // Makes the same analysis from other statistics of this model.
  StatusOr<BasisAnalysis> From(const Spec& spec, const CalibrationStatistics& statistics);

 private:
  struct KnownAnalysis {
    const BasisMethod* method;
    BasisOptions options;
    std::optional<MergePlan> merge;
    std::unique_ptr<BasisAnalysis> analysis;
  };

  ModelFacts model_;
  PlanSource* source_;
  std::vector<std::vector<double>> output_grams_;  // empty until they are needed
  std::vector<std::vector<float>> key_biases_, value_biases_;
  std::vector<KnownAnalysis> analyses_;
};

}  // namespace kvlathe
