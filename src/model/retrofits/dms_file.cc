#include "model/retrofits/dms_file.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/files.h"
#include "model/retrofits/dms_config.h"

namespace kvlathe {
namespace {

constexpr std::string_view kFileName = "dms.safetensors";
constexpr std::string_view kTensorMark = ".self_attn.dms_proj_alpha";

// What metadata say, as config.json would have it: numbers, true, false or a word.
nlohmann::json FieldsOf(const SafetensorsReader& reader) {
  nlohmann::json fields = nlohmann::json::object();
  for (const auto& [key, text] : reader.metadata()) {
    if (!key.starts_with("dms_")) continue;
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    fields[key] = value.is_discarded() ? nlohmann::json(text) : value;
  }
  return fields;
}

class DmsSource : public TensorSource {
 public:
  DmsSource(std::unique_ptr<TensorSource> model, SafetensorsReader dms)
      : model_(std::move(model)), dms_(MakeFileSource(std::move(dms))) {}
  bool Has(const std::string& name) const override { return Of(name).Has(name); }
  std::optional<GgmlType> BlocksOf(const std::string& name) const override {
    return Of(name).BlocksOf(name);
  }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    return Of(name).Get(name, shape);
  }
  // Pages of the small file may stay.
  void Done(const StoredTensor& tensor) override { model_->Done(tensor); }
  void DoneWithAll() override { model_->DoneWithAll(); }
  bool is_mapped() const override { return model_->is_mapped(); }

 private:
  TensorSource& Of(const std::string& name) const {
    return name.find(kTensorMark) == std::string::npos ? *model_ : *dms_;
  }

  std::unique_ptr<TensorSource> model_, dms_;
};

}  // namespace

std::string DmsPathBeside(const std::string& model) {
  constexpr std::string_view kGguf = ".gguf";
  if (DirectoryExists(model)) return fmt::format("{}/{}", model, kFileName);
  const std::string_view stem = model.ends_with(kGguf)
                                    ? std::string_view(model).substr(0, model.size() - kGguf.size())
                                    : std::string_view(model);
  return fmt::format("{}.{}", stem, kFileName);
}

std::string DmsNormName(int layer_idx) {
  return fmt::format("model.layers.{}{}_norm", layer_idx, kTensorMark);
}

std::string DmsProjectionName(int layer_idx) {
  return fmt::format("model.layers.{}{}", layer_idx, kTensorMark);
}

StatusOr<SafetensorsReader> OpenDmsFile(const std::string& path, ModelConfig* config) {
  if (config->dms.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: the model itself says already what decides (dms_window_size in its "
                 "config.json, or dms_metadata.json beside that); leave the file out",
                 path);
  }
  KVL_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::OpenFile(path));
  const nlohmann::json json = FieldsOf(reader);
  const ConfigFields fields(json, path);
  if (!fields.Has("dms_window_size")) {
    return Error(StatusCode::kDataLoss,
                 "{}: no file of a retrofit: its metadata lack dms_window_size; write it with "
                 "kvlathe retrofit dms",
                 path);
  }
  KVL_RETURN_IF_ERROR(ReadDms(fields, config));
  if (config->decides_in_queries()) {
    return Error(StatusCode::kDataLoss,
                 "{}: dms_separate_alpha in its metadata is not true: what decides would be a "
                 "channel of the model's own queries, of which a file beside it changes nothing",
                 path);
  }
  if (reader.Find(DmsProjectionName(config->n_layers) + ".weight") != nullptr) {
    return Error(StatusCode::kDataLoss,
                 "{}: has tensors of layer {}, and the model has {} layers; it belongs to another",
                 path, config->n_layers, config->n_layers);
  }
  return reader;
}

std::unique_ptr<TensorSource> WithDmsTensors(std::unique_ptr<TensorSource> model,
                                             SafetensorsReader dms) {
  return std::make_unique<DmsSource>(std::move(model), std::move(dms));
}

}  // namespace kvlathe
