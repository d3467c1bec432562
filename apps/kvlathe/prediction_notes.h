// What people are told of predicted losses, on stderr.
#pragma once

#include <span>
#include <string>

#include "kv/spec/spec.h"
#include "plan/planner.h"

namespace kvlathe {

// A cache that answers a question without a profile, and how it is confirmed.
void SayThatItIsPredicted(const Spec& question, const PredictedCache& answer,
                          const std::string& model);

// A KL that was measured on a text, and what was predicted of text like that of the calibration.
struct ComparedLoss {
  double measured = 0, predicted = 0;
};

// So many times the predicted KL are more than the prediction's own error.
inline constexpr double kFarFromCalibration = 3;

// One warning where a loss of the text is kFarFromCalibration times the predicted one or more.
void WarnOfFarText(std::span<const ComparedLoss> losses, const std::string& text_path,
                   const std::string& model);

}  // namespace kvlathe
