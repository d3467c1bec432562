#include "calibration/statistics_store.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "analysis/bases/lathe_maps.h"
#include "base/units.h"
#include "calibration/fingerprint.h"
#include "format/keys.h"
#include "io/atomic_file.h"
#include "io/files.h"

namespace kvlathe {
namespace {

StatusOr<CalibrationStatistics> ReadMatching(const std::string& path,
                                             const StatisticsRequest& request) {
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, ReadStatisticsOrMaps(path));
  KVL_RETURN_IF_ERROR(CheckServes(statistics, path, request));
  return statistics;
}
Status CheckSpace(const std::string& path, int64_t n_bytes) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  const std::filesystem::space_info space =
      std::filesystem::space(folder.empty() ? "." : folder, error);
  // Where nobody says how much there is, writing will.
  if (error || space.available == static_cast<std::uintmax_t>(-1)) return OkStatus();
  if (space.available >= static_cast<std::uintmax_t>(n_bytes)) return OkStatus();
  return Error(StatusCode::kResourceExhausted,
               "{}: {} are free, and calibration takes {}; make room there, or have it kept in "
               "another folder (-o, XDG_CACHE_HOME)",
               path, FormatBytes(static_cast<int64_t>(space.available)), FormatBytes(n_bytes));
}

StatisticsRequest WithContents(StatisticsRequest request, const StatisticsContents& contents) {
  request.contents = contents;
  return request;
}

// The contents that kept files of some positions may have.
std::vector<StatisticsContents> ContentsAt(int n_positions) {
  std::vector<StatisticsContents> contents;
  for (const bool gradients : {false, true}) {
    for (const bool across_heads : {false, true}) {
      for (const bool key_values : {false, true}) {
        for (const bool outputs : {false, true}) {
          contents.push_back({n_positions, gradients, across_heads, key_values, outputs});
        }
      }
    }
  }
  return contents;
}

// What kept files may hold that answers a request, the best first.
std::vector<StatisticsContents> ContentsThatServe(const StatisticsRequest& request) {
  std::vector<int> positions = {request.contents.n_positions};
  for (const int n_positions : request.model_positions) {
    const bool is_other = request.any_positions && n_positions != positions.front();
    if (is_other) positions.push_back(n_positions);
  }
  std::vector<StatisticsContents> serving;
  for (const int n_positions : positions) {
    for (const StatisticsContents& contents : ContentsAt(n_positions)) {
      if (HoldsAllOf(contents, request.contents)) serving.push_back(contents);
    }
  }
  return serving;
}

bool IsKept(const StatisticsRequest& request, const StatisticsContents& contents) {
  return FileExists(KeptStatisticsPath(WithContents(request, contents)));
}

// Why kept statistics do not serve the request; empty where there are none, or damaged ones.
std::string LackingInKept(const StatisticsRequest& request) {
  for (const StatisticsContents& contents : ContentsAt(request.contents.n_positions)) {
    if (HoldsAllOf(contents, request.contents) || !IsKept(request, contents)) continue;
    const bool lacks_gradients = request.contents.gradients && !contents.gradients;
    if (lacks_gradients) return "what is kept has no gradients";
    const bool lacks_values = request.contents.key_values && !contents.key_values;
    const bool lacks_outputs = request.contents.outputs && !contents.outputs;
    if (lacks_outputs) return "what is kept has no moments of what attention makes of values";
    return lacks_values ? "what is kept has no moments of keys with their values"
                        : "what is kept has no moments across heads";
  }
  for (const int n_positions : request.model_positions) {
    for (const StatisticsContents& contents : ContentsAt(n_positions)) {
      const bool is_other = n_positions != request.contents.n_positions;
      if (is_other && IsKept(request, contents)) {
        return fmt::format("what is kept is for contexts of {} tokens", n_positions);
      }
    }
  }
  return {};
}

// Removes kept files that the request's now makes needless.
void RemoveNeedless(const StatisticsRequest& request) {
  for (const StatisticsContents& contents : ContentsAt(request.contents.n_positions)) {
    if (contents == request.contents || !HoldsAllOf(request.contents, contents)) continue;
    std::error_code ignored;  // a file that stays is needless, not harmful
    std::filesystem::remove(KeptStatisticsPath(WithContents(request, contents)), ignored);
  }
}

void AddWarning(const std::string& line, std::string* warning) {
  if (!warning->empty()) *warning += "; ";
  *warning += line;
}

}  // namespace

Status CheckServes(const CalibrationStatistics& statistics, const std::string& path,
                   const StatisticsRequest& request) {
  KVL_RETURN_IF_ERROR(CheckStatisticsMatch(statistics, path, request.shape, request.model_hash,
                                           request.rope, request.merging));
  if (statistics.maps_of.has_value() && statistics.maps_of != request.maps_of) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: maps for lathe(keys={}) alone, with bits and without accuracy; leave --basis "
                 "out, or write statistics with kvlathe calibrate",
                 path, NameOf(*statistics.maps_of));
  }
  if (request.contents.across_heads && statistics.k_pre_across_heads.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: no Gram matrices across KV heads, which palu needs where they share latents; "
                 "write a new one with kvlathe calibrate --across-heads, or take whiten=off",
                 path);
  }
  if (request.contents.key_values && statistics.key_values.covariance.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: no moments of keys with their values, which lathe(maps=joint) needs; write a "
                 "new one with kvlathe calibrate --key-values, or leave maps out",
                 path);
  }
  if (request.contents.outputs && statistics.outputs.covariance.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: no moments of what attention makes of values, which spectral needs; write a "
                 "new one with kvlathe calibrate --outputs, or leave --basis out",
                 path);
  }
  return OkStatus();
}

bool HoldsAllOf(const StatisticsContents& held, const StatisticsContents& asked) {
  return (held.gradients || !asked.gradients) && (held.across_heads || !asked.across_heads) &&
         (held.key_values || !asked.key_values) && (held.outputs || !asked.outputs);
}

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
  key.Add(fmt::format("positions {}{}{}{}{}", request.contents.n_positions,
                      request.contents.gradients ? " with gradients" : "",
                      request.contents.across_heads ? " across heads" : "",
                      request.contents.key_values ? " with values" : "",
                      request.contents.outputs ? " with outputs" : ""));
  return directory + "/basis-" + key.Hex() + ".safetensors";
}

std::string KeptFisherPath(const StatisticsRequest& request) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return {};
  Fingerprint key;
  for (const std::string* text : {&request.model_hash, &request.rope, &request.settings}) {
    key.Add(*text);
  }
  return directory + "/fisher-" + key.Hex() + ".json";
}

std::string CheckpointPathOf(const std::string& path) { return path + ".part"; }

int64_t BytesWhileCalibrating(const StatisticsShape& s, const StatisticsContents& contents) {
  const int64_t d = s.head_dim, kv = s.n_kv_heads, joint = JointHeads(s) * d;
  // Matrices of a layer: those of heads, of sinks among them; of groups of heads, with the means,
  // covariances and F of keys before and after RoPE, less their mean and in frames, and of values,
  // in two parts; of a third one what gradients through all queries weigh, and F.
  int64_t n_numbers = (7 * kv + s.n_heads) * d * (d + 1);
  n_numbers += (kv * d / joint) * 5 * (8 * joint * joint + 5 * joint) + kv * d;
  n_numbers += 3 * kv * d * (ChannelHistograms::kBins + 4);
  if (contents.outputs) n_numbers += kv * d * (d + 1);
  if (contents.across_heads) n_numbers += 2 * kv * d * kv * d;
  // Sums of keys after RoPE and in frames have the angles of their positions too (TurningMeans).
  const int64_t angles = 2 * MostTurningPairs(static_cast<int>(d));
  const int64_t n_angle_sums = (kv * d / joint) * 10 * angles * (2 * joint + angles);
  constexpr int64_t kOfFile = sizeof(float), kOfSums = sizeof(double);
  int64_t n_bytes = n_numbers * (kOfFile + kOfSums) + n_angle_sums * kOfSums;
  if (contents.key_values) {
    // Three matrices in the file, and four in sums, three of which have angles.
    const int64_t side = KeyValueHeads(s) * d, width = 2 * side, wide = width + angles;
    n_bytes += kv * d / side *
               ((3 * width + 2) * width * kOfFile + 3 * (wide + 1) * wide * kOfSums +
                width * width * kOfFile);
  }
  return s.n_layers * n_bytes;
}

Status CheckCanKeep(const std::string& path, const StatisticsShape& shape,
                    const StatisticsContents& contents) {
  if (path.empty()) return Error(StatusCode::kInvalidArgument, "no file to write statistics to");
  KVL_RETURN_IF_ERROR(AtomicFile::Create(path).status());
  return CheckSpace(path, BytesWhileCalibrating(shape, contents));
}

namespace {

// Whether the user's cache, whose folder is made where it is missing, takes the file.
Status CheckCacheCanKeep(const std::string& path, const StatisticsRequest& request) {
  if (path.empty()) {
    return Error(StatusCode::kNotFound, "neither XDG_CACHE_HOME nor HOME is set");
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Error(StatusCode::kInternal, "{}: {}", folder.string(), error.message());
  return CheckCanKeep(path, request.shape, request.contents);
}

}  // namespace

StatusOr<FoundStatistics> FindOrCalibrate(const StatisticsRequest& request,
                                          const CalibrateFunction& calibrate) {
  FoundStatistics found;
  found.path = request.basis_path;
  if (found.path.empty() && !request.model_basis_path.empty()) {
    const std::string& beside_model = request.model_basis_path;
    if (FileExists(beside_model)) found.path = beside_model;
  }
  if (!found.path.empty()) {
    KVL_ASSIGN_OR_RETURN(found.statistics, ReadMatching(found.path, request));
    const int n_positions = found.statistics.source.n_positions;
    if (n_positions < request.context_positions && !request.any_positions) {
      AddWarning(fmt::format("{}: calibrated for contexts of {} tokens; in longer ones caches of "
                             "keys after RoPE may lose all accuracy. Write a new one with kvlathe "
                             "calibrate and the context in use (-c), or give a -c of {} here",
                             found.path, n_positions, n_positions),
                 &found.warning);
    }
    return found;
  }

  for (const StatisticsContents& contents : ContentsThatServe(request)) {
    const std::string path = KeptStatisticsPath(WithContents(request, contents));
    if (path.empty() || !FileExists(path)) continue;
    StatusOr<CalibrationStatistics> kept = ReadMatching(path, request);
    if (kept.ok()) {
      found.statistics = *std::move(kept);
      found.path = path;
      return found;
    }
    AddWarning(MessageOf(kept.status()) + "; calibrated again", &found.warning);
  }
  if (!request.maps_path.empty()) {
    StatusOr<CalibrationStatistics> maps = ReadMatching(request.maps_path, request);
    if (!maps.ok()) {
      AddWarning(MessageOf(maps.status()), &found.warning);
    } else if (request.any_positions || maps->source.n_positions == request.contents.n_positions) {
      found.statistics = *std::move(maps);
      found.path = request.maps_path;
      return found;
    }
  }
  const std::string path = KeptStatisticsPath(request);
  CalibrationCall call = {.lacking = LackingInKept(request),
                          .checkpoint_path = {},
                          .keeping = CheckCacheCanKeep(path, request)};
  if (call.keeping.ok()) call.checkpoint_path = CheckpointPathOf(path);
  KVL_ASSIGN_OR_RETURN(found.statistics, calibrate(call));
  found.is_new = true;
  const Status status = call.keeping.ok() ? WriteStatistics(found.statistics, path) : call.keeping;
  if (!status.ok()) {
    AddWarning("the calibration is not kept: " + MessageOf(status), &found.warning);
    return found;
  }
  found.path = path;
  std::error_code ignored;  // a checkpoint that stays is refused or removed by the next one
  std::filesystem::remove(call.checkpoint_path, ignored);
  RemoveNeedless(request);
  return found;
}

}  // namespace kvlathe
