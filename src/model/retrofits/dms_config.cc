#include "model/retrofits/dms_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "io/files.h"

namespace kvlathe {
namespace {

constexpr int kMostWindow = 1 << 16;

// What the released configurations of Model-Optimizer and of nvidia/Qwen3-8B-DMS-8x have, of which
// one is enough to know such a model by.
constexpr const char* kNames[] = {"dms_window_size",          "dms_cr",
                                  "dms_alpha_scale",          "dms_separate_alpha",
                                  "dms_initial_alpha_offset", "dms_alpha_per"};

Status ReadNumbers(const ConfigFields& fields, const char* scale, const char* offset,
                   DmsConfig* dms) {
  KVL_ASSIGN_OR_RETURN(const double of_scale, fields.NumberOr(scale, dms->scale, -1e6, 1e6));
  KVL_ASSIGN_OR_RETURN(const double of_offset, fields.NumberOr(offset, dms->offset, -1e6, 1e6));
  dms->scale = static_cast<float>(of_scale);
  dms->offset = static_cast<float>(of_offset);
  return OkStatus();
}

Status CheckModel(const std::string& where, const ModelConfig& config, const DmsConfig& dms) {
  if (config.norms.kind != NormKind::kRms) {
    return Error(StatusCode::kUnimplemented,
                 "{}: dms_window_size belongs to models with RMS norms, and {} has others", where,
                 config.model_type);
  }
  if (!dms.query_channel.has_value()) return OkStatus();
  if (!dms.is_per_head) {
    return Error(StatusCode::kUnimplemented,
                 "{}: 'dms_alpha_per' is layer and dms_separate_alpha is not true: one channel of "
                 "queries would decide for all heads, which is not built; take a model with "
                 "dms_alpha_per head",
                 where);
  }
  if (config.dmc.has_value()) {
    return Error(StatusCode::kUnimplemented,
                 "{}: both 'dmc' and, by dms_separate_alpha false, DMS take a channel of queries, "
                 "which do not go together; take a model with one of them",
                 where);
  }
  return OkStatus();
}

// The first of the names that an object has; the last where it has none of them.
const char* NameIn(const ConfigFields& fields, std::initializer_list<const char*> names) {
  const auto* const found =
      std::ranges::find_if(names, [&](const char* name) { return fields.Has(name); });
  return found == names.end() ? names.end()[-1] : *found;
}

// What the trainer of FastDMS writes: its models decide by a channel too, but of the position
// itself, and RoPE turns its partner into the channel again.
StatusOr<DmsConfig> ParseMetadata(const nlohmann::json& file, const std::string& where) {
  if (!file.is_object()) return Error(StatusCode::kDataLoss, "{}: not a JSON object", where);
  const bool is_wrapped = file.contains("config");
  if (is_wrapped && !file.at("config").is_object()) {
    return Error(StatusCode::kDataLoss, "{}: 'config' is not an object", where);
  }
  const ConfigFields fields(is_wrapped ? file.at("config") : file, where);
  constexpr std::string_view kBorrowed = "borrowed_query_channel_v1";
  KVL_ASSIGN_OR_RETURN(const std::string source,
                       fields.StringOr("decision_source", std::string(kBorrowed)));
  if (source != kBorrowed) {
    return Error(StatusCode::kUnimplemented,
                 "{}: 'decision_source' is '{}', which is not built; expected {}", where, source,
                 kBorrowed);
  }
  DmsConfig dms = {.window = 256,  // as that trainer has it
                   .query_channel = DmsConfig::QueryChannel{.zeroes_after_rope = false},
                   .decides_of_itself = true};
  KVL_ASSIGN_OR_RETURN(
      dms.window, fields.IntegerOr(NameIn(fields, {"window_size", "dms_window_size"}), dms.window,
                                   1, kMostWindow));
  KVL_RETURN_IF_ERROR(ReadNumbers(
      fields, NameIn(fields, {"alpha_scale", "dms_alpha_scale"}),
      NameIn(fields, {"alpha_offset", "dms_alpha_offset", "dms_initial_alpha_offset"}), &dms));
  return dms;
}

}  // namespace

Status ReadDms(const ConfigFields& fields, ModelConfig* config) {
  if (std::ranges::none_of(kNames, [&](const char* name) { return fields.Has(name); })) {
    return OkStatus();
  }
  DmsConfig dms;
  KVL_ASSIGN_OR_RETURN(dms.window, fields.IntegerOr("dms_window_size", dms.window, 1, kMostWindow));
  KVL_RETURN_IF_ERROR(ReadNumbers(fields, "dms_alpha_scale", "dms_initial_alpha_offset", &dms));
  KVL_ASSIGN_OR_RETURN(const std::string per, fields.StringOr("dms_alpha_per", "head"));
  KVL_ASSIGN_OR_RETURN(const bool is_separate, fields.BoolOr("dms_separate_alpha", false));
  if (per != "head" && per != "layer") {
    return Error(StatusCode::kDataLoss, "{}: 'dms_alpha_per' is '{}'; expected head or layer",
                 fields.where(), per);
  }
  dms.is_per_head = per == "head";
  if (!is_separate) dms.query_channel.emplace();
  KVL_RETURN_IF_ERROR(CheckModel(fields.where(), *config, dms));
  config->dms = dms;
  return OkStatus();
}

std::string DmsMetadataPath(const std::string& directory) {
  return directory + "/dms_metadata.json";
}

Status ReadDmsMetadata(const std::string& directory, ModelConfig* config) {
  const std::string path = DmsMetadataPath(directory);
  if (!FileExists(path)) return OkStatus();
  if (config->dms.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: config.json beside it has numbers of DMS of its own, which mean another way "
                 "to decide; remove one of them",
                 path);
  }
  KVL_ASSIGN_OR_RETURN(const nlohmann::json file, ReadJsonFile(path));
  KVL_ASSIGN_OR_RETURN(const DmsConfig dms, ParseMetadata(file, path));
  KVL_RETURN_IF_ERROR(CheckModel(path, *config, dms));
  config->dms = dms;
  return OkStatus();
}

}  // namespace kvlathe
