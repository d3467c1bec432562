// A model's calibration statistics live in the file that the user named, in the model's directory,
// or in the user's cache directory.
#pragma once

#include <functional>
#include <string>

#include "analysis/statistics/statistics.h"
#include "base/status.h"

namespace kvlathe {

struct StatisticsRequest {
  std::string basis_path;        // --basis; empty: not given
  std::string model_basis_path;  // used where it exists (BesideModel); empty: none
  StatisticsShape shape;
  std::string model_hash;
  std::string rope;
  int n_positions = 0;  // CalibrationPositions() of the context; 0: the model has no RoPE
  // How a missing file would be made (token count, seed, sequence length), as text: part of the
  // name in the user's cache directory.
  std::string settings;
  bool across_heads = false;  // with those across the KV heads of a layer
  std::string merging = {};   // StatisticsSource::merging
};

struct FoundStatistics {
  CalibrationStatistics statistics;
  std::string path;     // read from or kept in; empty if they could not be kept
  bool is_new = false;  // calibration ran
  std::string warning;  // one line for the user, or empty
};

// The name of the file in a model's directory: basis.safetensors, or basis-dmc-12.safetensors for
// rows that merge so. They stand side by side.
std::string StatisticsFileName(const std::string& merging);

// $XDG_CACHE_HOME/kvlathe, or $HOME/.cache/kvlathe; empty if neither variable is set.
std::string UserCacheDirectory();

// Name in the user's cache directory: a function of model hash, RoPE settings and `settings`. Empty
// if there is no such directory.
std::string KeptStatisticsPath(const StatisticsRequest& request);

// --basis first, then model_basis_path; a file in either place that does not fit
// or lacks what is asked for is an error, and one that was made for fewer positions a warning. Then
// the kept file, and if that is missing or damaged `calibrate` runs and its result is kept. A cache
// directory that cannot be written is a warning.
StatusOr<FoundStatistics> FindOrCalibrate(
    const StatisticsRequest& request,
    const std::function<StatusOr<CalibrationStatistics>()>& calibrate);

}  // namespace kvlathe
