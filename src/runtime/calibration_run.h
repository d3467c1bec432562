// Calibrates the model of a workspace on tokens that a seed draws, or on a text.
#pragma once

#include <optional>
#include <string>

#include "calibration/calibrate.h"
#include "kv/retention/retention_plan.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct CalibrationRun {
  int64_t n_random_tokens = kDefaultCalibrationTokens;
  std::string text_path;  // not empty: calibrate on it instead
  uint64_t seed = 0;
  bool across_heads = false;            // statistics across the KV heads of a layer too
  std::optional<MergePlan> merge = {};  // of rows that merge so, behind kCalibrationSinks positions
  bool gradients = true;  // take gradients of stored rows too (BasisMethod::wants_gradients)

  // How its tokens come about and merge, as part of a kept file's key; not which text.
  std::string Describe() const;
  std::string Merging() const;   // StatisticsSource::merging
  std::string SpecText() const;  // of the cache whose rows are looked at
};

// The context that statistics of the workspace's model are made for (CalibrationContext).
int CalibratedContext(const Workspace& workspace);

// Runs the model for CalibratedContext. `times` may be null. kInvalidArgument for a text or a
// context that is too short, and the errors of Calibrate.
StatusOr<CalibrationStatistics> RunCalibration(Workspace* workspace, const CalibrationRun& run,
                                               CalibrationTimes* times = nullptr);

StatisticsShape ShapeOf(const ModelConfig& config);

}  // namespace kvlathe
