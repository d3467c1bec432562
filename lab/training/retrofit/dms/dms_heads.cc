#include "training/retrofit/dms/dms_heads.h"

#include <charconv>
#include <cmath>
#include <map>
#include <system_error>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace kvlathe {
namespace {

constexpr char kOffsetKey[] = "dms_initial_alpha_offset";

std::map<std::string, std::string> MetadataOf(const DmsRecipe& recipe) {
  return {{"format", "pt"},
          {"dms_window_size", fmt::format("{}", recipe.window)},
          {"dms_alpha_scale", fmt::format("{}", recipe.scale)},
          {kOffsetKey, fmt::format("{}", recipe.offset)},
          {"dms_alpha_per", "head"},
          {"dms_separate_alpha", "true"}};
}

}  // namespace

Status WriteDmsHeads(const Decoder& decoder, const DmsRecipe& recipe, const std::string& path) {
  std::vector<torch::Tensor> kept;
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const torch::Tensor& parameter, DType dtype) {
    const auto type = dtype == DType::kBf16 ? torch::kBFloat16 : torch::kFloat;
    kept.push_back(parameter.detach().to(torch::kCPU, type).contiguous());
    TensorToWrite tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = kept.back().sizes().vec();
    tensor.data = kept.back().data_ptr();
    tensors.push_back(std::move(tensor));
  };
  // Those of 4 bytes come first, so that all are aligned.
  for (const bool is_bias : {true, false}) {
    for (const auto& [name, parameter] : decoder.parameters()) {
      if (!IsOfDmsHead(name) || name.ends_with(".bias") != is_bias) continue;
      add(name, parameter, is_bias ? DType::kF32 : DType::kBf16);
    }
  }
  return WriteSafetensors(path, tensors, MetadataOf(recipe));
}

Status ReadDmsHeads(const std::string& path, const DmsRecipe& recipe, Decoder* decoder) {
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::OpenFile(path));
  double offset = recipe.offset;
  for (const auto& [key, value] : MetadataOf(recipe)) {
    const auto found = reader.metadata().find(key);
    const std::string there = found == reader.metadata().end() ? "missing" : found->second;
    if (key == kOffsetKey) {
      const bool is_read =
          std::from_chars(there.data(), there.data() + there.size(), offset).ec == std::errc() &&
          std::isfinite(offset);
      if (is_read) continue;
    }
    if (there == value) continue;
    return Error(StatusCode::kInvalidArgument, "{}: {} is {} there, {} in the recipe", path, key,
                 there, value);
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder->parameters()) {
    if (!IsOfDmsHead(name)) continue;
    KVL_ASSIGN_OR_RETURN(const TensorView* view, reader.Get(name, parameter.sizes().vec()));
    torch::Tensor values = torch::empty(parameter.sizes(), torch::kFloat);
    ConvertToFloat(view->dtype, view->data, view->n_elements(), values.data_ptr<float>());
    if (name.ends_with(".bias")) values.add_((recipe.offset - offset) / recipe.scale);
    torch::Tensor(parameter).copy_(values);
  }
  return OkStatus();
}

}  // namespace kvlathe
