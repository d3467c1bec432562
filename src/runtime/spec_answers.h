// Which cache a spec with `accuracy` means: a model's profile says it, or else the planner's
// prediction.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/status.h"
#include "kv/spec/spec.h"
#include "plan/planner.h"
#include "runtime/profile_file.h"

namespace kvlathe {

class Workspace;

class SpecAnswers {
 public:
  // Of the model of `workspace`, which outlives this.
  explicit SpecAnswers(Workspace* workspace) : workspace_(*workspace) {}

  // The spec, or its answer in a profile; a question that the planner is to answer as it is.
  StatusOr<Spec> Checked(const std::string& kv);
  // The planner's answer, which a note says when it is found.
  StatusOr<PredictedCache> ByPrediction(const Spec& question);

 private:
  // Nothing where no profile answers and the planner may (CheckIsPredicted).
  StatusOr<std::optional<Spec>> OfProfile(const Spec& question);

  Workspace& workspace_;
  bool has_looked_for_profile_ = false;
  std::optional<FoundProfile> profile_;
  std::map<std::string, PredictedCache> predicted_;  // by the question, resolved
};

}  // namespace kvlathe
