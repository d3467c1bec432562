#include "model/retrofits/dms_config.h"

#include <nlohmann/json.hpp>
#include <string>

namespace kvlathe {

Status ReadDms(const ConfigFields& fields, ModelConfig* config) {
  if (!fields.Has("dms_window_size")) return OkStatus();
  constexpr int kMostWindow = 1 << 16;
  DmsConfig dms;
  KVL_ASSIGN_OR_RETURN(dms.window, fields.Integer("dms_window_size", 1, kMostWindow));
  KVL_ASSIGN_OR_RETURN(const double scale,
                       fields.NumberOr("dms_alpha_scale", dms.scale, -1e6, 1e6));
  KVL_ASSIGN_OR_RETURN(const double offset,
                       fields.NumberOr("dms_initial_alpha_offset", dms.offset, -1e6, 1e6));
  KVL_ASSIGN_OR_RETURN(const std::string per, fields.StringOr("dms_alpha_per", "head"));
  KVL_ASSIGN_OR_RETURN(const bool is_separate, fields.BoolOr("dms_separate_alpha", false));
  if (per != "head" && per != "layer") {
    return Error(StatusCode::kDataLoss, "{}: 'dms_alpha_per' is '{}'; expected head or layer",
                 fields.where(), per);
  }
  if (!is_separate) {
    return Error(StatusCode::kUnimplemented,
                 "{}: dms_separate_alpha is false: a channel of the queries decides what leaves, "
                 "which is not built; take a model with dms_separate_alpha",
                 fields.where());
  }
  if (config->norms.kind != NormKind::kRms) {
    return Error(StatusCode::kUnimplemented,
                 "{}: dms_window_size belongs to models with RMS norms, and {} has others",
                 fields.where(), config->model_type);
  }
  dms.scale = static_cast<float>(scale);
  dms.offset = static_cast<float>(offset);
  dms.is_per_head = per == "head";
  config->dms = dms;
  return OkStatus();
}

}  // namespace kvlathe
