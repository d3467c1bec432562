#include "calibration/statistics_store.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "calibration/fingerprint.h"
#include "io/files.h"

namespace kvlathe {
namespace {

StatusOr<CalibrationStatistics> ReadMatching(const std::string& path,
                                             const StatisticsRequest& request) {
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, ReadStatistics(path));
  KVL_RETURN_IF_ERROR(CheckStatisticsMatch(statistics, path, request.shape, request.model_hash,
                                           request.rope, request.merging));
  if (request.across_heads && statistics.k_pre_across_heads.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: no Gram matrices across KV heads, which palu needs where they share latents; "
                 "write a new one with kvlathe calibrate --across-heads, or take whiten=off",
                 path);
  }
  return statistics;
}

Status Keep(const CalibrationStatistics& statistics, const std::string& path) {
  if (path.empty()) {
    return Error(StatusCode::kNotFound, "neither XDG_CACHE_HOME nor HOME is set");
  }
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error(StatusCode::kInternal, "{}: {}", directory.string(), error.message());
  }
  return WriteStatistics(statistics, path);
}

void AddWarning(const std::string& line, std::string* warning) {
  if (!warning->empty()) *warning += "; ";
  *warning += line;
}

}  // namespace

std::string StatisticsFileName(const std::string& merging) {
  return merging.empty() ? "basis.safetensors" : "basis-" + merging + ".safetensors";
}

std::string UserCacheDirectory() {
  // The XDG base directory specification has relative paths ignored.
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/kvlathe";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] != '\0') return std::string(home) + "/.cache/kvlathe";
  return {};
}

std::string KeptStatisticsPath(const StatisticsRequest& request) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return {};
  Fingerprint key;
  key.Add(request.model_hash);
  key.Add(request.rope);
  key.Add(request.settings);
  return directory + "/basis-" + key.Hex() + ".safetensors";
}

StatusOr<FoundStatistics> FindOrCalibrate(
    const StatisticsRequest& request,
    const std::function<StatusOr<CalibrationStatistics>()>& calibrate) {
  FoundStatistics found;
  found.path = request.basis_path;
  if (found.path.empty() && !request.model_basis_path.empty()) {
    const std::string& beside_model = request.model_basis_path;
    if (FileExists(beside_model)) found.path = beside_model;
  }
  if (!found.path.empty()) {
    KVL_ASSIGN_OR_RETURN(found.statistics, ReadMatching(found.path, request));
    const int n_positions = found.statistics.source.n_positions;
    if (n_positions < request.n_positions) {
      AddWarning(fmt::format("{}: calibrated for contexts of {} tokens; in longer ones caches of "
                             "keys after RoPE may lose all accuracy. Write a new one with kvlathe "
                             "calibrate and the context in use (-c), or give a -c of {} here",
                             found.path, n_positions, n_positions),
                 &found.warning);
    }
    return found;
  }

  found.path = KeptStatisticsPath(request);
  if (!found.path.empty() && FileExists(found.path)) {
    StatusOr<CalibrationStatistics> kept = ReadMatching(found.path, request);
    if (kept.ok()) {
      found.statistics = *std::move(kept);
      return found;
    }
    AddWarning(MessageOf(kept.status()) + "; calibrated again", &found.warning);
  }
  KVL_ASSIGN_OR_RETURN(found.statistics, calibrate());
  found.is_new = true;
  if (const Status status = Keep(found.statistics, found.path); !status.ok()) {
    AddWarning("the calibration is not kept: " + MessageOf(status), &found.warning);
    found.path.clear();
  }
  return found;
}

}  // namespace kvlathe
