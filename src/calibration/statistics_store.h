// A model's calibration statistics live in the file that the user named, in the model's directory,
// or in the user's cache directory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/status.h"

namespace kvlathe {

// What tells kept statistics of the same model and tokens apart.
struct StatisticsContents {
  int n_positions = 0;        // CalibrationPositions() of their context; 0: the model has no RoPE
  bool gradients = false;     // with what errors of rows cost
  bool across_heads = false;  // with moments across the KV heads of a layer
  bool key_values = false;    // with moments of keys with their values
  bool outputs = false;       // with moments of what attention makes of values

  bool operator==(const StatisticsContents&) const = default;
};

// Whether everything that `asked` names is in `held`, whatever the positions.
bool HoldsAllOf(const StatisticsContents& held, const StatisticsContents& asked);

struct StatisticsRequest {
  std::string basis_path;        // --basis; empty: not given
  std::string model_basis_path;  // used where it exists (BesideModel); empty: none
  StatisticsShape shape;
  std::string model_hash;
  std::string rope;
  // How a missing file would be made (tokens, seed, type of rows), as text: part of the name in the
  // user's cache directory.
  std::string settings;
  StatisticsContents contents;  // what is asked for, and made where it is missing
  // Whether kept statistics of other positions do as well: for what reads no rows after RoPE.
  bool any_positions = false;
  std::vector<int> model_positions = {};  // of all contexts of the model: where kept ones may be
  int context_positions = 0;              // CalibrationPositions() of the context in use
  std::string merging = {};               // StatisticsSource::merging
  // Where nothing else is read (StatisticsNeed::maps_of), a file of lathe's maps does as well.
  std::optional<KeyRows> maps_of = {};
  // A file of such maps that comes with kvlathe, read before a calibration and used as kept files
  // are: of the positions that are asked for, or of any. Empty: none.
  std::string maps_path = {};
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

// Name in the user's cache directory: a function of model hash, RoPE settings, `settings` and
// `contents`. Empty if there is no such directory.
std::string KeptStatisticsPath(const StatisticsRequest& request);

// As KeptStatisticsPath, of the weights of palu(ranks=fisher) on the request's tokens.
std::string KeptFisherPath(const StatisticsRequest& request);

// The checkpoint of a calibration whose statistics will lie at `path`.
std::string CheckpointPathOf(const std::string& path);

// Bytes of statistics and of a checkpoint of them, as they may lie beside each other.
int64_t BytesWhileCalibrating(const StatisticsShape& shape, const StatisticsContents& contents);

// Whether a file of statistics can be written to `path` and a checkpoint beside it. An error says
// what stands in the way, and what to do: the folder is missing or does not take files, or has no
// space.
Status CheckCanKeep(const std::string& path, const StatisticsShape& shape,
                    const StatisticsContents& contents);

// What a calibration that begins should know.
struct CalibrationCall {
  std::string lacking;          // what kept statistics lack; empty where none are kept
  std::string checkpoint_path;  // CalibrationJob::checkpoint_path
  Status keeping;               // CheckCanKeep(): an error is no reason not to calibrate
};

// Makes statistics of the request's contents.
using CalibrateFunction = std::function<StatusOr<CalibrationStatistics>(const CalibrationCall&)>;

// kInvalidArgument, with the way out, where statistics that were read from `path` are of another
// model than the request or lack what it asks for.
Status CheckServes(const CalibrationStatistics& statistics, const std::string& path,
                   const StatisticsRequest& request);

// --basis first, then model_basis_path; a file in either place that does not fit
// or lacks what is asked for is an error, and one that was made for fewer positions than the
// context has a warning. Then kept files: of what is asked for, or of more. Then the maps that come
// with kvlathe. If there is none, or a damaged one, `calibrate` runs and its result is kept; its
// checkpoint and kept files of the same positions that hold less are removed. A cache directory
// that cannot be written is known to `calibrate`, and no error.
StatusOr<FoundStatistics> FindOrCalibrate(const StatisticsRequest& request,
                                          const CalibrateFunction& calibrate);

}  // namespace kvlathe
