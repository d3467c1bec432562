// Calibrates the model of a workspace on tokens that a seed draws, or on a text.
#pragma once

#include <optional>
#include <string>

#include "analysis/bases/basis.h"
#include "analysis/ranks/fisher.h"
#include "calibration/calibrate.h"
#include "kv/quantizer/codebooks.h"
#include "kv/retention/retention_plan.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct CalibrationRun {
  int64_t n_random_tokens = kDefaultCalibrationTokens;
  std::string text_path;      // not empty: calibrate on it instead
  int64_t n_text_tokens = 0;  // of the text, in sequences from all over it; 0: CalibrationTokens()
  uint64_t seed = 0;
  bool across_heads = false;            // statistics across the KV heads of a layer too
  bool key_values = false;              // CalibrationStatistics::key_values too
  bool outputs = false;                 // CalibrationStatistics::outputs too
  std::optional<MergePlan> merge = {};  // of rows that merge so, behind kCalibrationSinks positions
  bool gradients = true;  // take gradients of stored rows too (BasisMethod::wants_gradients)

  // Keeps what is added up while it runs, and is read where a run of the same was interrupted;
  // empty: none. It stays there: whoever keeps the statistics removes it.
  std::string checkpoint_path = {};

  // How its tokens come about and merge, as part of a kept file's key; not which text.
  std::string Describe() const;
  std::string Merging() const;   // StatisticsSource::merging
  std::string SpecText() const;  // of the cache whose rows are looked at
};

// The context that statistics of the workspace's model are made for (CalibrationContext).
int CalibratedContext(const Workspace& workspace);

// Runs the model for CalibratedContext, with rows that are rounded to 8 bits in products with
// weights in blocks whatever OpenOptions::exact_rows says. Notes of the workspace say how long it
// takes, as measured on its first sequence, and what became of a checkpoint. `times` may be null.
// kInvalidArgument for a text or a context that is too short, and the errors of Calibrate.
StatusOr<CalibrationStatistics> RunCalibration(Workspace* workspace, const CalibrationRun& run,
                                               CalibrationTimes* times = nullptr);

// The same into a file, with a checkpoint beside it; what cannot be written is known before the
// work begins.
Status CalibrateInto(Workspace* workspace, CalibrationRun run, const std::string& path);

// Palu's weights of the layers (analysis/ranks/fisher.h) on the run's text, or on its random
// tokens, by the gradients of what the model itself predicts (DecoderGradients).
inline constexpr int64_t kFisherTokens = 8192;
StatusOr<FisherWeights> RunFisher(Workspace* workspace, const CalibrationRun& run);

// Histograms of what the basis stores of the run's text.
inline constexpr int64_t kHistogramTokens = 8192;
StatusOr<BasisHistograms> RunBasisHistograms(Workspace* workspace, const CalibrationRun& run,
                                             const ModelBasis& basis);

StatisticsShape ShapeOf(const ModelConfig& config);

}  // namespace kvlathe
