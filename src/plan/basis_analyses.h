// The bases of a model at full width, by method and options: each is found once, when a spec first
// needs it.
#pragma once

#include <memory>
#include <vector>

#include "analysis/bases/method.h"
#include "kv/spec/spec.h"
#include "plan/model_facts.h"
#include "plan/plan_source.h"

namespace kvlathe {

// By what the spec's basis is found before a prompt; null without such a basis.
const BasisMethod* BasisMethodOf(const Spec& spec);

// What a spec with a stage of the basis axis asks of its method's bases, beside ranks.
BasisOptions BasisOptionsOf(const Spec& spec);

class BasisAnalyses {
 public:
  // The source outlives it.
  BasisAnalyses(const ModelFacts& model, PlanSource* source) : model_(model), source_(source) {}

  // Of a spec with such a basis; lives as long as this.
  StatusOr<const BasisAnalysis*> Of(const Spec& spec);
  // The same from other statistics of this model.
  StatusOr<BasisAnalysis> From(const Spec& spec, const CalibrationStatistics& statistics);

 private:
  struct KnownAnalysis {
    const BasisMethod* method;
    BasisOptions options;
    std::unique_ptr<BasisAnalysis> analysis;
  };

  ModelFacts model_;
  PlanSource* source_;
  std::vector<std::vector<double>> value_grams_, output_grams_;  // once needed
  std::vector<std::vector<float>> key_biases_, value_biases_;
  std::vector<KnownAnalysis> analyses_;
};

}  // namespace kvlathe
