#include "analysis/statistics/statistics.h"

#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/safetensors_checksum.h"

namespace kvlathe {
namespace {

constexpr const char* kFormat = "kvlathe-statistics";
constexpr const char* kFormatVersion = "13";
constexpr const char* kRecalibrate = "write a new one with kvlathe calibrate";

using Metadata = std::map<std::string, std::string>;

struct ArrayField {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float>* values;
};

void AddMoments(const std::string& name, const StatisticsShape& shape, int64_t n_heads,
                HeadMoments* moments, std::vector<ArrayField>* fields) {
  const int64_t n_layers = shape.n_layers, head_dim = shape.head_dim;
  fields->push_back({name + ".mean", {n_layers, n_heads, head_dim}, &moments->mean});
  fields->push_back(
      {name + ".covariance", {n_layers, n_heads, head_dim, head_dim}, &moments->covariance});
}

void AddJointMoments(const std::string& name, const StatisticsShape& shape, JointMoments* moments,
                     std::vector<ArrayField>* fields) {
  const int64_t n_heads = JointHeads(shape), width = n_heads * shape.head_dim;
  const int64_t n_layers = shape.n_layers, n_groups = shape.n_kv_heads / n_heads;
  fields->push_back({name + ".mean", {n_layers, n_groups, width}, &moments->mean});
  fields->push_back(
      {name + ".covariance", {n_layers, n_groups, width, width}, &moments->covariance});
  fields->push_back({name + ".fisher", {n_layers, n_groups, width, width}, &moments->fisher});
  fields->push_back({name + ".weighed_mean", {n_layers, n_groups, width}, &moments->weighed_mean});
  fields->push_back({name + ".weighed_covariance",
                     {n_layers, n_groups, width, width},
                     &moments->weighed_covariance});
}

void AddJointStatistics(const std::string& name, const StatisticsShape& shape,
                        JointStatistics* statistics, std::vector<ArrayField>* fields) {
  AddJointMoments(name + ".k", shape, &statistics->k, fields);
  AddJointMoments(name + ".k_block", shape, &statistics->k_block, fields);
  AddJointMoments(name + ".k_pre", shape, &statistics->k_pre, fields);
  AddJointMoments(name + ".v", shape, &statistics->v, fields);
}

void AddHistograms(const std::string& name, const StatisticsShape& shape,
                   ChannelHistograms* histograms, std::vector<ArrayField>* fields) {
  const std::vector<int64_t> channels = {shape.n_layers, shape.n_kv_heads, shape.head_dim};
  fields->push_back({name + ".center", channels, &histograms->center});
  fields->push_back({name + ".bin_width", channels, &histograms->bin_width});
  fields->push_back({name + ".min", channels, &histograms->min});
  fields->push_back({name + ".max", channels, &histograms->max});
  std::vector<int64_t> bins = channels;
  bins.push_back(ChannelHistograms::kBins);
  fields->push_back({name + ".counts", bins, &histograms->counts});
}

// Every array of the file, in one list that writing and reading share.
std::vector<ArrayField> ArrayFields(CalibrationStatistics* s) {
  std::vector<ArrayField> fields;
  const int n_kv_heads = s->shape.n_kv_heads;
  AddMoments("q_post", s->shape, n_kv_heads, &s->q_post, &fields);
  AddMoments("k_post", s->shape, n_kv_heads, &s->k_post, &fields);
  AddMoments("k_pre", s->shape, n_kv_heads, &s->k_pre, &fields);
  AddMoments("v", s->shape, n_kv_heads, &s->v, &fields);
  AddMoments("q_pre", s->shape, s->shape.n_heads, &s->q_pre, &fields);
  AddMoments("sink_q_post", s->shape, n_kv_heads, &s->sink_q_post, &fields);
  AddMoments("sink_k_post", s->shape, n_kv_heads, &s->sink_k_post, &fields);
  AddMoments("sink_v", s->shape, n_kv_heads, &s->sink_v, &fields);
  AddJointStatistics("joint", s->shape, &s->joint, &fields);
  AddJointStatistics("held_back", s->shape, &s->held_back, &fields);
  fields.push_back(
      {"turning_mean", {s->shape.n_layers, n_kv_heads, s->shape.head_dim}, &s->turning_mean});
  AddHistograms("k_post_histograms", s->shape, &s->k_post_histograms, &fields);
  AddHistograms("k_pre_histograms", s->shape, &s->k_pre_histograms, &fields);
  AddHistograms("v_histograms", s->shape, &s->v_histograms, &fields);
  return fields;
}

constexpr const char* kAcrossHeads = "k_pre_across_heads.covariance";

// What a file may lack.
void AddAcrossHeads(CalibrationStatistics* s, std::vector<ArrayField>* fields) {
  const int64_t width = int64_t{s->shape.n_kv_heads} * s->shape.head_dim;
  const std::vector<int64_t> shape = {s->shape.n_layers, width, width};
  fields->push_back({kAcrossHeads, shape, &s->k_pre_across_heads});
  fields->push_back({"v_across_heads.covariance", shape, &s->v_across_heads});
}

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

Metadata MetadataOf(const CalibrationStatistics& s) {
  return {{"format", kFormat},
          {"format_version", kFormatVersion},
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

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

}  // namespace

int JointHeads(const StatisticsShape& shape) {
  int n_heads = shape.n_kv_heads;
  while (n_heads > 1 && (shape.n_kv_heads % n_heads != 0 ||
                         int64_t{n_heads} * shape.head_dim > kMostJointChannels)) {
    --n_heads;
  }
  return n_heads;
}

CalibrationStatistics MakeStatistics(const StatisticsShape& shape) {
  CalibrationStatistics statistics;
  statistics.shape = shape;
  for (const ArrayField& field : ArrayFields(&statistics)) {
    field.values->assign(ElementsOf(field.shape), 0.0f);
  }
  return statistics;
}

Status WriteStatistics(const CalibrationStatistics& statistics, const std::string& path) {
  std::vector<TensorToWrite> tensors;
  // The lists of fields serve reading as well, hence the cast; nothing is written through it here.
  auto* const s = const_cast<CalibrationStatistics*>(&statistics);
  std::vector<ArrayField> fields = ArrayFields(s);
  if (!s->k_pre_across_heads.empty()) AddAcrossHeads(s, &fields);
  for (const ArrayField& field : fields) {
    KVL_CHECK_EQ(static_cast<int64_t>(field.values->size()), ElementsOf(field.shape));
    tensors.push_back({field.name, DType::kF32, field.shape, field.values->data()});
  }
  return WriteSafetensors(path, tensors, WithChecksum(tensors, MetadataOf(statistics)));
}

StatusOr<CalibrationStatistics> ReadStatistics(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::OpenFile(path));
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat) {
    return Error(StatusCode::kDataLoss, "{}: not a file of calibration statistics; {}", path,
                 kRecalibrate);
  }
  const MetadataReader metadata(file);
  std::string version;
  KVL_RETURN_IF_ERROR(metadata.Read("format_version", &version));
  if (version != kFormatVersion) {
    return Error(StatusCode::kDataLoss, "{}: format version {}, this build reads version {}; {}",
                 path, version, kFormatVersion, kRecalibrate);
  }
  if (!HasRightChecksum(file)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its checksum does not fit what it holds; {}",
                 path, kRecalibrate);
  }
  CalibrationStatistics statistics;
  KVL_RETURN_IF_ERROR(ReadShape(metadata, path, &statistics.shape));
  KVL_RETURN_IF_ERROR(ReadSource(metadata, &statistics.source));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_rows", 1, INT64_MAX, &statistics.n_rows));
  KVL_RETURN_IF_ERROR(metadata.Read<int64_t>("n_sink_rows", 0, INT64_MAX, &statistics.n_sink_rows));
  KVL_RETURN_IF_ERROR(
      metadata.Read<int64_t>("n_joint_tokens", 0, INT64_MAX, &statistics.joint.n_tokens));
  KVL_RETURN_IF_ERROR(
      metadata.Read<int64_t>("n_held_back_tokens", 0, INT64_MAX, &statistics.held_back.n_tokens));
  std::vector<ArrayField> fields = ArrayFields(&statistics);
  if (file.Find(kAcrossHeads) != nullptr) AddAcrossHeads(&statistics, &fields);
  for (const ArrayField& field : fields) {
    KVL_ASSIGN_OR_RETURN(const TensorView* tensor, file.Get(field.name, field.shape));
    field.values->resize(tensor->n_elements());
    ConvertToFloat(tensor->dtype, tensor->data, tensor->n_elements(), field.values->data());
    for (const float x : *field.values) {
      if (!std::isfinite(x)) {
        return Error(StatusCode::kDataLoss, "{}: tensor {} holds a value that is not finite; {}",
                     path, field.name, kRecalibrate);
      }
    }
  }
  return statistics;
}

Status CheckStatisticsMatch(const CalibrationStatistics& statistics, const std::string& path,
                            const StatisticsShape& shape, const std::string& model_hash,
                            const std::string& rope, const std::string& merging) {
  const StatisticsShape& found = statistics.shape;
  if (found != shape) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: made for a model of {} layers, {}/{} heads of {}, this one has {} layers, "
                 "{}/{} heads of {}; {}",
                 path, found.n_layers, found.n_heads, found.n_kv_heads, found.head_dim,
                 shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim, kRecalibrate);
  }
  if (statistics.source.model_hash != model_hash) {
    return Error(StatusCode::kInvalidArgument, "{}: made for another model (hash {}, not {}); {}",
                 path, statistics.source.model_hash, model_hash, kRecalibrate);
  }
  if (statistics.source.rope != rope) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: made with RoPE settings '{}', this model runs with '{}'; {}", path,
                 statistics.source.rope, rope, kRecalibrate);
  }
  const std::string& made_for = statistics.source.merging;
  if (made_for != merging) {
    const auto describe = [](const std::string& name) {
      return name.empty() ? std::string("does not merge") : "merges by " + name;
    };
    return Error(StatusCode::kInvalidArgument,
                 "{}: calibrated on the rows of a cache that {}, and this one {}; leave --basis "
                 "out, or write a new one with kvlathe calibrate and the same --kv",
                 path, describe(made_for), describe(merging));
  }
  return OkStatus();
}

}  // namespace kvlathe
