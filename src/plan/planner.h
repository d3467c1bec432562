// Makes the plans of one model's caches. Whatever is found for one spec, such as the analysis of a
// basis, serves all others.
#pragma once

#include <optional>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "base/status.h"
#include "kv/spec/spec.h"
#include "plan/basis_analyses.h"
#include "plan/cache_plan.h"
#include "plan/loss_predictions.h"
#include "plan/model_facts.h"
#include "plan/plan_source.h"

namespace kvlathe {

// Refuses what the spec alone, or the shape of the model, rules out, before weights are read and
// before a calibration, which takes long. Errors are printable, name the spec and say what to do
// instead.
Status CheckSpec(const Spec& spec, const ModelFacts& model);

// A cache that was chosen by what it is expected to lose.
struct PredictedCache {
  Spec spec;                // with `ratio`
  double predicted_kl = 0;  // in nats per predicted token
};

// The positions at which a ratio of the spec counts bytes.
int RatioContext(const Spec& spec, const ModelFacts& model);

class CachePlanner {
 public:
  // The source outlives the planner.
  CachePlanner(const ModelFacts& model, PlanSource* source)
      : model_(model),
        source_(source),
        analyses_(model, source),
        predictions_(&analyses_, source) {}

  const ModelFacts& model() const { return model_; }
  // A planner of the same model, from the same source, on so many ranks and stages
  // (ModelFacts). It finds its bases anew, as maps that join heads differ.
  CachePlanner Divided(int tensor_ranks, int pipeline_stages) const {
    ModelFacts model = model_;
    model.tensor_ranks = tensor_ranks;
    model.pipeline_stages = pipeline_stages;
    return CachePlanner(model, source_);
  }

  // Does what CheckSpec does.
  Status Check(const Spec& spec);
  // Makes the plan of everything that the spec means for this model. A rate, which only specs with
  // resident=full take, is that of sequences that choose none. Plans that offer rates refer to the
  // planner, which outlives them and the models that are made of them.
  StatusOr<CachePlan> MakePlan(const Spec& spec, std::optional<double> rate = std::nullopt);
  // The kv_fraction at RatioContext(), as `ratio` means it. No maps are made for it.
  StatusOr<double> FractionOf(const Spec& spec);
  // The KL that is expected of a cache on text like that of the calibration (LossPredictor). Errors
  // are those of CheckIsPredicted, of LossPredictions::Of and of MakePlan.
  StatusOr<double> PredictKl(const Spec& spec);
  // The same by layer.
  StatusOr<PredictedLosses> PredictLosses(const Spec& spec);
  // Answers a question (Spec::accuracy): the largest ratio below 100, in tenths, with a predicted
  // KL of at most -ln(accuracy), with which perplexity may grow by 1 / accuracy.
  // kFailedPrecondition where no ratio has so little, and the errors of PredictKl.
  StatusOr<PredictedCache> AnswerByPrediction(const Spec& question);
  // The maps of a spec with a calibrated basis, cut to the ranks. They have all dimensions where
  // these stay resident.
  StatusOr<ModelBasis> BasisAt(const Spec& spec, const RankAllocation& allocation);

  BasisAnalyses& analyses() { return analyses_; }

 private:
  StatusOr<RankAllocation> ChooseRanks(const Spec& spec, std::optional<double> rate);
  // With the bits of runs under pressure, if the spec has such.
  Status AddPressedBits(const Spec& spec, RankAllocation* allocation);
  StatusOr<ModelBasis> DrawnBasis(const Spec& spec);
  // The basis of a spec whose sequences find their maps themselves. It holds these ranks, and what
  // the maps are found from.
  StatusOr<ModelBasis> OnlineBasis(const Spec& spec, const std::vector<HeadRanks>& ranks);
  Status AddBasis(const Spec& spec, std::optional<double> rate, PlanParts* parts);
  Status AddCodebooks(const Spec& spec, PlanParts* parts);

  ModelFacts model_;
  PlanSource* source_;
  BasisAnalyses analyses_;
  LossPredictions predictions_;
};

}  // namespace kvlathe
