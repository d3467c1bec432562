#include "analysis/statistics/statistics.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "analysis/statistics/statistics_metadata.h"
#include "base/check.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/safetensors_checksum.h"

namespace kvlathe {
namespace {

constexpr FileFormat kFormat = {"kvlathe-statistics", "15", "calibration statistics"};

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

// Of a kind of rows as their gradients weigh them.
void AddWeighedRows(const std::string& name, int64_t n_layers, int64_t n_groups, int64_t width,
                    JointMoments* moments, std::vector<ArrayField>* fields) {
  fields->push_back({name + ".weighed_mean", {n_layers, n_groups, width}, &moments->weighed_mean});
  fields->push_back({name + ".weighed_covariance",
                     {n_layers, n_groups, width, width},
                     &moments->weighed_covariance});
}

// All but `fisher`.
void AddRowsOfGroups(const std::string& name, int64_t n_layers, int64_t n_groups, int64_t width,
                     JointMoments* moments, std::vector<ArrayField>* fields) {
  fields->push_back({name + ".mean", {n_layers, n_groups, width}, &moments->mean});
  fields->push_back(
      {name + ".covariance", {n_layers, n_groups, width, width}, &moments->covariance});
  AddWeighedRows(name, n_layers, n_groups, width, moments, fields);
}

void AddMomentsOfGroups(const std::string& name, int64_t n_layers, int64_t n_groups, int64_t width,
                        JointMoments* moments, std::vector<ArrayField>* fields) {
  AddRowsOfGroups(name, n_layers, n_groups, width, moments, fields);
  fields->push_back({name + ".fisher", fields->back().shape, &moments->fisher});
}

void AddJointRows(const std::string& name, const StatisticsShape& shape, JointMoments* moments,
                  std::vector<ArrayField>* fields) {
  const int64_t n_heads = JointHeads(shape);
  AddRowsOfGroups(name, shape.n_layers, shape.n_kv_heads / n_heads, n_heads * shape.head_dim,
                  moments, fields);
}

void AddJointMoments(const std::string& name, const StatisticsShape& shape, JointMoments* moments,
                     std::vector<ArrayField>* fields) {
  const int64_t n_heads = JointHeads(shape);
  AddMomentsOfGroups(name, shape.n_layers, shape.n_kv_heads / n_heads, n_heads * shape.head_dim,
                     moments, fields);
}

void AddJointStatistics(const std::string& name, const StatisticsShape& shape,
                        JointStatistics* statistics, std::vector<ArrayField>* fields) {
  AddJointMoments(name + ".k", shape, &statistics->k, fields);
  AddJointRows(name + ".k_centred", shape, &statistics->k_centred, fields);
  AddJointMoments(name + ".k_block", shape, &statistics->k_block, fields);
  AddJointMoments(name + ".k_pre", shape, &statistics->k_pre, fields);
  AddJointMoments(name + ".v", shape, &statistics->v, fields);
}

// What it does not have in common with `joint`.
void AddThroughAll(const StatisticsShape& shape, JointStatistics* statistics,
                   std::vector<ArrayField>* fields) {
  const int64_t n_heads = JointHeads(shape), width = n_heads * shape.head_dim;
  for (const KeyRows rows : kAllKeyRows) {
    JointMoments* const moments = &statistics->keys(rows);
    const std::string name = fmt::format("through_all.k_{}", NameOf(rows));
    AddWeighedRows(name, shape.n_layers, shape.n_kv_heads / n_heads, width, moments, fields);
    if (rows == KeyRows::kCentred) continue;  // its `fisher` is that of keys after RoPE
    fields->push_back({name + ".fisher", fields->back().shape, &moments->fisher});
  }
  AddWeighedRows("through_all.v", shape.n_layers, shape.n_kv_heads / n_heads, width, &statistics->v,
                 fields);
  fields->push_back({"through_all.v.fisher", fields->back().shape, &statistics->v.fisher});
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
  AddThroughAll(s->shape, &s->through_all, &fields);
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

// What the list has once for two.
void ShareFisher(CalibrationStatistics* s) {
  for (JointStatistics* of_text : {&s->joint, &s->held_back, &s->through_all}) {
    of_text->k_centred.fisher = of_text->k.fisher;
  }
  ShareJointRows(s);
}

constexpr const char* kOutputs = "outputs";
constexpr const char* kKeyValues = "key_values";

void AddKeyValues(CalibrationStatistics* s, std::vector<ArrayField>* fields) {
  const int n_heads = KeyValueHeads(s->shape);
  AddMomentsOfGroups(kKeyValues, s->shape.n_layers, s->shape.n_kv_heads / n_heads,
                     2 * int64_t{n_heads} * s->shape.head_dim, &s->key_values, fields);
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

int KeyValueHeads(const StatisticsShape& shape) {
  const int n_joint = JointHeads(shape);
  int n_heads = n_joint;
  while (n_heads > 1 &&
         (n_joint % n_heads != 0 || n_heads * shape.head_dim > kMostKeyValueChannels)) {
    --n_heads;
  }
  return n_heads;
}

const char* NameOf(KeyRows rows) {
  switch (rows) {
    case KeyRows::kAfterRope:
      return "after";
    case KeyRows::kCentred:
      return "centred";
    case KeyRows::kBlock:
      return "block";
    case KeyRows::kBeforeRope:
      break;
  }
  return "before";
}

void ShareJointRows(CalibrationStatistics* statistics) {
  const auto share = [](const JointMoments& from, JointMoments* to) {
    to->mean = from.mean;
    to->covariance = from.covariance;
  };
  for (const KeyRows rows : kAllKeyRows) {
    share(statistics->joint.keys(rows), &statistics->through_all.keys(rows));
  }
  share(statistics->joint.v, &statistics->through_all.v);
  statistics->through_all.n_tokens = statistics->joint.n_tokens;
}

CalibrationStatistics MakeStatistics(const StatisticsShape& shape) {
  CalibrationStatistics statistics;
  statistics.shape = shape;
  for (const ArrayField& field : ArrayFields(&statistics)) {
    field.values->assign(ElementsOf(field.shape), 0.0f);
  }
  ShareFisher(&statistics);
  return statistics;
}

Status WriteStatistics(const CalibrationStatistics& statistics, const std::string& path) {
  std::vector<TensorToWrite> tensors;
  // The lists of fields serve reading as well, hence the cast; nothing is written through it here.
  auto* const s = const_cast<CalibrationStatistics*>(&statistics);
  std::vector<ArrayField> fields = ArrayFields(s);
  if (!s->k_pre_across_heads.empty()) AddAcrossHeads(s, &fields);
  if (!s->outputs.covariance.empty()) {
    AddMoments(kOutputs, s->shape, s->shape.n_kv_heads, &s->outputs, &fields);
  }
  if (!s->key_values.covariance.empty()) AddKeyValues(s, &fields);
  for (const ArrayField& field : fields) {
    KVL_CHECK_EQ(static_cast<int64_t>(field.values->size()), ElementsOf(field.shape));
    tensors.push_back({field.name, DType::kF32, field.shape, field.values->data()});
  }
  return WriteSafetensors(path, tensors, WithChecksum(tensors, MetadataOf(statistics, kFormat)));
}

StatusOr<CalibrationStatistics> ReadStatistics(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::OpenFile(path));
  KVL_RETURN_IF_ERROR(CheckFormat(file, kFormat));
  CalibrationStatistics statistics;
  KVL_RETURN_IF_ERROR(ReadMetadata(file, &statistics));
  std::vector<ArrayField> fields = ArrayFields(&statistics);
  if (file.Find(kAcrossHeads) != nullptr) AddAcrossHeads(&statistics, &fields);
  if (file.Find(std::string(kOutputs) + ".mean") != nullptr) {
    AddMoments(kOutputs, statistics.shape, statistics.shape.n_kv_heads, &statistics.outputs,
               &fields);
  }
  const std::string of_values = std::string(kKeyValues) + ".mean";
  if (file.Find(of_values) != nullptr) AddKeyValues(&statistics, &fields);
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
  ShareFisher(&statistics);
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
