#include "codec/row_shape.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "io/files.h"

namespace kvlathe {
namespace {

constexpr int kMostLayers = 4096, kMostHeads = 4096, kMostHeadDim = 256;
constexpr int kMostPositions = 1 << 24;
constexpr double kMostScoreCap = 1e6;

Status CheckNumber(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{}={}: it is between {} and {}", name, value, least,
               most);
}

ModelConfig WithoutRetrofits(ModelConfig config) {
  config.dmc.reset();
  config.dms.reset();
  return config;
}

Status SetWindows(const RowShape& shape, const RopeConfig& rope, ModelConfig* config) {
  config->attention.kinds = {{.rope = rope, .window = 0}};
  if (shape.windows.empty()) return OkStatus();
  if (std::ssize(shape.windows) != shape.n_layers) {
    return Error(StatusCode::kInvalidArgument, "windows has {} numbers; there are {} layers",
                 shape.windows.size(), shape.n_layers);
  }
  config->attention.kinds.clear();
  for (const int window : shape.windows) {
    KVL_RETURN_IF_ERROR(CheckNumber("window", window, 0, kMostPositions));
    auto& kinds = config->attention.kinds;
    size_t kind = 0;
    while (kind < kinds.size() && kinds[kind].window != window) ++kind;
    if (kind == kinds.size()) kinds.push_back({.rope = rope, .window = window});
    config->attention.kind_of_layer.push_back(static_cast<int>(kind));
  }
  return OkStatus();
}

}  // namespace

StatusOr<ModelConfig> ConfigOf(const RowShape& shape) {
  KVL_RETURN_IF_ERROR(CheckNumber("n_layers", shape.n_layers, 1, kMostLayers));
  KVL_RETURN_IF_ERROR(CheckNumber("n_heads", shape.n_heads, 1, kMostHeads));
  KVL_RETURN_IF_ERROR(CheckNumber("n_kv_heads", shape.n_kv_heads, 1, shape.n_heads));
  KVL_RETURN_IF_ERROR(CheckNumber("head_dim", shape.head_dim, 16, kMostHeadDim));
  KVL_RETURN_IF_ERROR(CheckNumber("max_positions", shape.max_positions, 1, kMostPositions));
  if (shape.n_heads % shape.n_kv_heads != 0) {
    return Error(StatusCode::kInvalidArgument, "n_heads={} is no multiple of n_kv_heads={}",
                 shape.n_heads, shape.n_kv_heads);
  }
  if (shape.head_dim % 16 != 0) {
    return Error(StatusCode::kInvalidArgument, "head_dim={} is no multiple of 16", shape.head_dim);
  }
  ModelConfig config;
  config.model_type = "rows";
  config.n_layers = shape.n_layers;
  config.n_heads = shape.n_heads;
  config.n_kv_heads = shape.n_kv_heads;
  config.head_dim = shape.head_dim;
  config.max_seq_len = shape.max_positions;
  RopeConfig rope;
  if (shape.rope_theta.has_value()) {
    const bool is_theta = *shape.rope_theta > 0 && *shape.rope_theta < 1e12;
    if (!is_theta || shape.rotary_fraction <= 0 || shape.rotary_fraction > 1) {
      return Error(StatusCode::kInvalidArgument,
                   "rope_theta={} and rotary_fraction={}: the first is above 0 and below 1e12, the "
                   "second above 0 and at most 1",
                   *shape.rope_theta, shape.rotary_fraction);
    }
    rope.theta = *shape.rope_theta;
    config.rotary_fraction = shape.rotary_fraction;
    if (config.rope_dim() % 4 != 0) {
      return Error(StatusCode::kInvalidArgument,
                   "rotary_fraction={}: {} of {} channels turn, which is no multiple of 4",
                   shape.rotary_fraction, config.rope_dim(), shape.head_dim);
    }
  } else {
    config.positions = PositionKind::kLearned;
  }
  if (!(shape.score_cap >= 0 && shape.score_cap <= kMostScoreCap)) {
    return Error(StatusCode::kInvalidArgument, "score_cap={}: it is between 0, for none, and {}",
                 shape.score_cap, kMostScoreCap);
  }
  config.score_cap = static_cast<float>(shape.score_cap);
  config.has_sink_logits = shape.has_sink_logits;
  KVL_RETURN_IF_ERROR(SetWindows(shape, rope, &config));
  return config;
}

StatusOr<ModelConfig> ReadAttentionConfig(const std::string& json, const std::string& where) {
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return Error(StatusCode::kDataLoss, "{}: no JSON", where);
  KVL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(parsed, where));
  return WithoutRetrofits(std::move(config));
}

StatusOr<ModelConfig> LoadAttentionConfig(const std::string& path) {
  if (path.ends_with(".json") && FileExists(path)) {
    KVL_ASSIGN_OR_RETURN(const nlohmann::json parsed, ReadJsonFile(path));
    KVL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(parsed, path));
    return WithoutRetrofits(std::move(config));
  }
  KVL_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(path));
  return WithoutRetrofits(std::move(config));
}

}  // namespace kvlathe
