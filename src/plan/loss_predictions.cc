#include "plan/loss_predictions.h"

#include <fmt/format.h>

#include <utility>

namespace kvlathe {
namespace {

constexpr double kProbedRatio = 4;  // any: whether bits are split does not hang on it

}  // namespace

StatusOr<Spec> WithRatio(const Spec& question, double ratio) {
  const Stage& stage = *question.stage(Axis::kBasis);
  std::string keys = fmt::format("ratio={}", ratio);
  for (const auto& [key, value] : stage.values) {
    if (key->excludes_others || key->name == "under_pressure") continue;
    keys += fmt::format(",{}={}", key->name, ValueText(value));
  }
  KVL_ASSIGN_OR_RETURN(Spec answer, Spec::Parse(fmt::format("{}({})", stage.name, keys)));
  answer.set_text(question.text());
  return answer;
}

Status CheckIsPredicted(const Spec& spec) {
  if (spec.basis_as<LatheOptions>() == nullptr || spec.stages().size() != 1) {
    return Error(StatusCode::kUnimplemented, "a KL is predicted of lathe alone");
  }
  if (spec.basis_as<LatheOptions>()->joins_values) {
    return Error(StatusCode::kUnimplemented,
                 "a KL is not predicted of maps=joint; give it a ratio");
  }
  bool splits_bits = FactsOf(spec.sealing()).splits_bits;
  if (spec.accuracy().has_value()) {
    KVL_ASSIGN_OR_RETURN(const Spec answer, WithRatio(spec, kProbedRatio));
    splits_bits = FactsOf(answer.sealing()).splits_bits;
  }
  if (splits_bits) return OkStatus();
  return Error(StatusCode::kUnimplemented, "a KL is predicted of lathe where it splits bits");
}

StatusOr<const LossPredictor*> LossPredictions::Of(const Spec& spec) {
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, analyses_->Of(spec));
  const auto known = predictors_.find(analysis);
  if (known != predictors_.end()) return known->second.get();
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics, analyses_->StatisticsOf(spec));
  if (statistics->maps_of.has_value()) {
    return Error(StatusCode::kFailedPrecondition,
                 "a KL is predicted of text that calibration held back, and a file of maps has "
                 "none; calibrate with kvlathe calibrate --text FILE");
  }
  if (statistics->held_back.n_tokens == 0) {
    return Error(StatusCode::kFailedPrecondition,
                 "the calibration text is too short to hold back a part of it, by which a KL is "
                 "predicted; calibrate on a longer one with kvlathe calibrate --text FILE");
  }
  auto predictor = std::make_unique<LossPredictor>(*analysis, statistics->held_back,
                                                   statistics->shape, source_->threads());
  return predictors_.emplace(analysis, std::move(predictor)).first->second.get();
}

}  // namespace kvlathe
