// The KL of the caches of one model is predicted here, from what calibration holds back.
#pragma once

#include <map>
#include <memory>

#include "analysis/bases/predicted_kl.h"
#include "base/status.h"
#include "kv/spec/spec.h"
#include "plan/basis_analyses.h"
#include "plan/plan_source.h"

namespace kvlathe {

// Whether a KL is predicted of caches like that of the spec: lathe alone, that splits bits. For a
// question (Spec::accuracy), of its answer. kUnimplemented says what is in the way.
Status CheckIsPredicted(const Spec& spec);

// The spec of lathe alone with this ratio: the answer to a question. All its other keys stay but
// under_pressure, which is of another ratio, and its text is what was typed.
StatusOr<Spec> WithRatio(const Spec& question, double ratio);

class LossPredictions {
 public:
  // Both outlive this.
  LossPredictions(BasisAnalyses* analyses, PlanSource* source)
      : analyses_(analyses), source_(source) {}

  // The predictor for a spec that CheckIsPredicted lets pass and that asks nothing. It lives as
  // long as this. kFailedPrecondition, saying what to do, if the calibration held no text back.
  StatusOr<const LossPredictor*> Of(const Spec& spec);

 private:
  BasisAnalyses* analyses_;
  PlanSource* source_;
  std::map<const BasisAnalysis*, std::unique_ptr<LossPredictor>> predictors_;
};

}  // namespace kvlathe
