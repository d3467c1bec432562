// What people are told of predicted losses.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "kv/spec/spec.h"
#include "plan/planner.h"

namespace kvlathe {

// Names a cache that answers a question without a profile, and says how it is confirmed.
std::string NoteOfPrediction(const Spec& question, const PredictedCache& answer,
                             const std::string& model);

// A KL that was measured on a text, and what was predicted of text like that of the calibration.
struct ComparedLoss {
  double measured = 0, predicted = 0;
};

// So many times the predicted KL are more than the prediction's own error.
inline constexpr double kFarFromCalibration = 3;

// A warning where a loss of the text is kFarFromCalibration times the predicted one or more.
std::optional<std::string> WarningOfFarText(std::span<const ComparedLoss> losses,
                                            const std::string& text_path, const std::string& model);

}  // namespace kvlathe
