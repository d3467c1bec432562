#include "analysis/statistics/statistics_metadata.h"

#include <charconv>

#include "io/safetensors/safetensors_checksum.h"

namespace kvlathe {
namespace {

class MetadataReader {
 public:
  explicit MetadataReader(const SafetensorsReader& file) : file_(file) {}

  Status Read(const char* key, std::string* value) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) {
      return Error(StatusCode::kDataLoss, "{}: no metadata '{}'; {}", file_.path(), key,
                   kRecalibrate);
    }
    *value = found->second;
    return OkStatus();
  }

  bool Has(const char* key) const { return file_.metadata().contains(key); }

  template <typename T>
  Status Read(const char* key, T lowest, T highest, T* value) const {
    std::string text;
    KVL_RETURN_IF_ERROR(Read(key, &text));
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *value);
    if (error != std::errc() || stop != end || *value < lowest || *value > highest) {
      return Error(StatusCode::kDataLoss, "{}: metadata '{}' is '{}', not a number in {}..{}; {}",
                   file_.path(), key, text, lowest, highest, kRecalibrate);
    }
    return OkStatus();
  }

 private:
  const SafetensorsReader& file_;
};

Status ReadShape(const MetadataReader& metadata, const std::string& path, StatisticsShape* shape) {
  // Bounds far above any model; they keep products of the dimensions inside 64 bits.
  constexpr int kMaxDimension = 1 << 14;
  KVL_RETURN_IF_ERROR(metadata.Read("n_layers", 1, kMaxDimension, &shape->n_layers));
  KVL_RETURN_IF_ERROR(metadata.Read("n_heads", 1, kMaxDimension, &shape->n_heads));
  KVL_RETURN_IF_ERROR(metadata.Read("n_kv_heads", 1, kMaxDimension, &shape->n_kv_heads));
  KVL_RETURN_IF_ERROR(metadata.Read("head_dim", 1, kMaxDimension, &shape->head_dim));
  if (shape->n_heads % shape->n_kv_heads != 0) {
    return Error(StatusCode::kDataLoss, "{}: {} query heads do not divide into {} KV heads; {}",
                 path, shape->n_heads, shape->n_kv_heads, kRecalibrate);
  }
  return OkStatus();
}

Status ReadSource(const MetadataReader& metadata, StatisticsSource* source) {
  KVL_RETURN_IF_ERROR(metadata.Read("model_hash", &source->model_hash));
  KVL_RETURN_IF_ERROR(metadata.Read("rope", &source->rope));
  KVL_RETURN_IF_ERROR(metadata.Read("token_source", &source->token_source));
  KVL_RETURN_IF_ERROR(metadata.Read<uint64_t>("seed", 0, UINT64_MAX, &source->seed));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_tokens", 1, INT64_MAX, &source->n_tokens));
  KVL_RETURN_IF_ERROR(
      metadata.Read<int>("sequence_tokens", 1, INT32_MAX, &source->sequence_tokens));
  source->n_positions = source->sequence_tokens;  // where a file does not say
  if (metadata.Has("merging")) {
    KVL_RETURN_IF_ERROR(metadata.Read("merging", &source->merging));
  }
  if (!metadata.Has("n_positions")) return OkStatus();
  return metadata.Read<int>("n_positions", 1, INT32_MAX, &source->n_positions);
}

}  // namespace

std::map<std::string, std::string> MetadataOf(const CalibrationStatistics& s,
                                              const FileFormat& format) {
  return {{"format", format.name},
          {"format_version", format.version},
          {"model_hash", s.source.model_hash},
          {"rope", s.source.rope},
          {"token_source", s.source.token_source},
          {"seed", std::to_string(s.source.seed)},
          {"n_tokens", std::to_string(s.source.n_tokens)},
          {"sequence_tokens", std::to_string(s.source.sequence_tokens)},
          {"n_positions", std::to_string(s.source.n_positions)},
          {"merging", s.source.merging},
          {"n_rows", std::to_string(s.n_rows)},
          {"n_sink_rows", std::to_string(s.n_sink_rows)},
          {"n_joint_tokens", std::to_string(s.joint.n_tokens)},
          {"n_held_back_tokens", std::to_string(s.held_back.n_tokens)},
          {"n_layers", std::to_string(s.shape.n_layers)},
          {"n_heads", std::to_string(s.shape.n_heads)},
          {"n_kv_heads", std::to_string(s.shape.n_kv_heads)},
          {"head_dim", std::to_string(s.shape.head_dim)}};
}

bool HasFormat(const SafetensorsReader& file, const FileFormat& format) {
  const auto found = file.metadata().find("format");
  return found != file.metadata().end() && found->second == format.name;
}

Status CheckFormat(const SafetensorsReader& file, const FileFormat& format) {
  if (!HasFormat(file, format)) {
    return Error(StatusCode::kDataLoss, "{}: not a file of {}; {}", file.path(), format.holds,
                 kRecalibrate);
  }
  std::string version;
  KVL_RETURN_IF_ERROR(MetadataReader(file).Read("format_version", &version));
  if (version != format.version) {
    return Error(StatusCode::kDataLoss, "{}: format version {}, this build reads version {}; {}",
                 file.path(), version, format.version, kRecalibrate);
  }
  if (HasRightChecksum(file)) return OkStatus();
  return Error(StatusCode::kDataLoss, "{}: damaged: its checksum does not fit what it holds; {}",
               file.path(), kRecalibrate);
}

Status ReadMetadata(const SafetensorsReader& file, CalibrationStatistics* s) {
  const MetadataReader metadata(file);
  KVL_RETURN_IF_ERROR(ReadShape(metadata, file.path(), &s->shape));
  KVL_RETURN_IF_ERROR(ReadSource(metadata, &s->source));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_rows", 1, INT64_MAX, &s->n_rows));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_sink_rows", 0, INT64_MAX, &s->n_sink_rows));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_joint_tokens", 0, INT64_MAX, &s->joint.n_tokens));
  return metadata.Read<int64_t>("n_held_back_tokens", 0, INT64_MAX, &s->held_back.n_tokens);
}

}  // namespace kvlathe
