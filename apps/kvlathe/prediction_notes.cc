#include "kvlathe/prediction_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tuning/profile.h"
#include "tuning/tune_method.h"

namespace kvlathe {

void SayThatItIsPredicted(const Spec& question, const PredictedCache& answer,
                          const std::string& model) {
  fmt::print(stderr,
             "kvlathe: note: --kv '{}': {} has a predicted KL of {:.2g} nats per token; to confirm "
             "it by measuring: {}\n",
             question.text(), ShortText(answer.spec, /*names_method=*/false), answer.predicted_kl,
             TuneCommand(question, model));
}

void WarnOfFarText(std::span<const ComparedLoss> losses, const std::string& text_path,
                   const std::string& model) {
  double most = 0;
  for (const ComparedLoss& loss : losses) {
    if (loss.predicted > 0) most = std::max(most, loss.measured / loss.predicted);
  }
  if (most < kFarFromCalibration) return;
  fmt::print(stderr,
             "kvlathe: warning: {} is far from the calibration: its KL is {:.1f} times the "
             "predicted; calibrate on text like it: kvlathe calibrate -m {} --text FILE\n",
             text_path, most, model);
}

}  // namespace kvlathe
