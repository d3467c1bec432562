#include "runtime/default_sampling.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/files.h"
#include "io/gguf/gguf.h"

namespace kvlathe {
namespace {

constexpr double kMost = 1e6;

Status ReadOfGguf(const std::string& model, SamplingParams* sampling) {
  KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  const auto read = [&](std::string_view name, auto* value) -> Status {
    const std::string key = "general.sampling." + std::string(name);
    KVL_ASSIGN_OR_RETURN(const double number, file.NumberOr(key, *value, -1, kMost));
    *value = static_cast<std::remove_pointer_t<decltype(value)>>(number);
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(read("temp", &sampling->temperature));
  KVL_RETURN_IF_ERROR(read("top_k", &sampling->top_k));
  KVL_RETURN_IF_ERROR(read("top_p", &sampling->top_p));
  KVL_RETURN_IF_ERROR(read("min_p", &sampling->min_p));
  KVL_RETURN_IF_ERROR(read("penalty_repeat", &sampling->repetition_penalty));
  return read("penalty_last_n", &sampling->repeat_last_n);
}

Status ReadOfDirectory(const std::string& path, SamplingParams* sampling) {
  if (!FileExists(path)) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  if (!json.is_object()) return OkStatus();
  const auto read = [&](const char* name, auto* value) -> Status {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) return OkStatus();
    if (!found->is_number() || !(std::abs(found->get<double>()) <= kMost)) {
      return Error(StatusCode::kDataLoss, "{}: {} is not a number", path, name);
    }
    *value = static_cast<std::remove_pointer_t<decltype(value)>>(found->get<double>());
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(read("temperature", &sampling->temperature));
  KVL_RETURN_IF_ERROR(read("top_k", &sampling->top_k));
  KVL_RETURN_IF_ERROR(read("top_p", &sampling->top_p));
  KVL_RETURN_IF_ERROR(read("min_p", &sampling->min_p));
  KVL_RETURN_IF_ERROR(read("repetition_penalty", &sampling->repetition_penalty));
  const auto samples = json.find("do_sample");
  if (samples != json.end() && samples->is_boolean() && !samples->get<bool>()) {
    sampling->temperature = 0;
  }
  return OkStatus();
}

}  // namespace

StatusOr<SamplingParams> DefaultSampling(const std::string& model) {
  SamplingParams sampling = {.temperature = kDefaultTemperature};
  if (model.empty()) return sampling;
  const bool is_directory = DirectoryExists(model);
  const std::string file = is_directory ? model + "/generation_config.json" : model;
  KVL_RETURN_IF_ERROR(is_directory ? ReadOfDirectory(file, &sampling)
                                   : ReadOfGguf(file, &sampling));
  if (const Status status = sampling.Check(); !status.ok()) {
    return Error(StatusCode::kDataLoss, "{}: how it is sampled cannot be: {}", file,
                 MessageOf(status));
  }
  return sampling;
}

}  // namespace kvlathe
