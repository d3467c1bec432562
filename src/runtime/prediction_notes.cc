#include "runtime/prediction_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "tuning/profile.h"
#include "tuning/tune_method.h"

namespace kvlathe {

std::string NoteOfPrediction(const Spec& question, const PredictedCache& answer,
                             const std::string& model) {
  return fmt::format(
      "--kv '{}': {} has a predicted KL of {:.2g} nats per token; to confirm it by measuring: {}",
      question.text(), ShortText(answer.spec, /*names_method=*/false), answer.predicted_kl,
      TuneCommand(question, model));
}

std::optional<std::string> WarningOfFarText(std::span<const ComparedLoss> losses,
                                            const std::string& text_path,
                                            const std::string& model) {
  double most = 0;
  for (const ComparedLoss& loss : losses) {
    if (loss.predicted > 0) most = std::max(most, loss.measured / loss.predicted);
  }
  if (most < kFarFromCalibration) return std::nullopt;
  return fmt::format(
      "{} is far from the calibration: its KL is {:.1f} times the predicted; calibrate on text "
      "like it: kvlathe calibrate -m {} --text FILE",
      text_path, most, model);
}

}  // namespace kvlathe
