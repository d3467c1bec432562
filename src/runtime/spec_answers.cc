#include "runtime/spec_answers.h"

#include <utility>

#include "runtime/prediction_notes.h"
#include "runtime/workspace.h"

namespace kvlathe {

StatusOr<std::optional<Spec>> SpecAnswers::OfProfile(const Spec& question) {
  if (!has_looked_for_profile_) {
    KVL_ASSIGN_OR_RETURN(profile_, LookForProfile(workspace_));
    has_looked_for_profile_ = true;
  }
  const Status is_predicted = CheckIsPredicted(question);
  if (profile_.has_value()) {
    const bool is_silent = workspace_.options().profile.empty() &&
                           profile_->profile.model_hash == workspace_.model_hash() &&
                           !HasSearchedFor(profile_->profile, question);
    if (is_silent && is_predicted.ok()) return std::optional<Spec>();
    return Answer(profile_->profile, profile_->path, question, workspace_.options().model,
                  workspace_.model_hash());
  }
  if (is_predicted.ok()) return std::optional<Spec>();
  return Error(
      StatusCode::kNotFound,
      "--kv '{}': accuracy needs a tuned profile, for {}, and {} has none; run {}, or give "
      "--profile FILE",
      question.text(), MessageOf(is_predicted), workspace_.options().model,
      TuneCommand(question, workspace_.options().model));
}

StatusOr<Spec> SpecAnswers::Checked(const std::string& kv) {
  KVL_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(kv));
  if (spec.accuracy().has_value() && !workspace_.has_random_weights()) {
    KVL_ASSIGN_OR_RETURN(std::optional<Spec> answer, OfProfile(spec));
    if (!answer.has_value()) {
      constexpr double kAnyRatio = 4;
      KVL_ASSIGN_OR_RETURN(const Spec like_the_answer, WithRatio(spec, kAnyRatio));
      KVL_RETURN_IF_ERROR(workspace_.planner().Check(like_the_answer));
      return spec;
    }
    spec = *std::move(answer);
  }
  KVL_RETURN_IF_ERROR(workspace_.planner().Check(spec));
  return spec;
}

StatusOr<PredictedCache> SpecAnswers::ByPrediction(const Spec& question) {
  const auto known = predicted_.find(question.ToString());
  if (known != predicted_.end()) return known->second;
  const StatusOr<PredictedCache> found = workspace_.planner().AnswerByPrediction(question);
  if (!found.ok()) {
    return Error(found.status().code(), "{}, or find out what is possible: {}",
                 MessageOf(found.status()), TuneCommand(question, workspace_.options().model));
  }
  workspace_.Notify(Note::Kind::kNote,
                    NoteOfPrediction(question, *found, workspace_.options().model));
  return predicted_.emplace(question.ToString(), *found).first->second;
}

}  // namespace kvlathe
