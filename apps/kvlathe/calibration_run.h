// Calibration as the command line runs it: tokens from a seed or a text, the workspace's model.
#pragma once

#include <optional>
#include <string>

#include "calibration/calibrate.h"
#include "kv/retention/retention_plan.h"
#include "kvlathe/workspace.h"

namespace kvlathe {

struct CalibrationRun {
  int64_t n_random_tokens = kDefaultCalibrationTokens;
  std::string text_path;  // not empty: calibrate on it instead
  uint64_t seed = 0;
  bool across_heads = false;            // statistics across the KV heads of a layer too
  std::optional<MergePlan> merge = {};  // of rows that merge so, behind kCalibrationSinks positions
  bool gradients = true;  // take gradients of stored rows too (BasisMethod::wants_gradients)

  std::string Describe() const;  // the settings, as part of a file name's key
  std::string Merging() const;   // StatisticsSource::merging
  std::string SpecText() const;  // of the cache whose rows are looked at
};

// Where the time went.
struct CalibrationSeconds {
  CalibrationTimes statistics;
};

// `seconds` may be null.
StatusOr<CalibrationStatistics> RunCalibration(Workspace* workspace, const std::string& model_hash,
                                               const CalibrationRun& run,
                                               CalibrationSeconds* seconds = nullptr);

StatisticsShape ShapeOf(const ModelConfig& config);

}  // namespace kvlathe
