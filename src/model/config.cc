#include "model/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "model/config_families.h"

namespace kvlathe {
namespace {

using nlohmann::json;

Status AppendEosIds(const json& config, const std::string& where, int vocab_size,
                    std::vector<int>* eos_ids) {
  if (!config.contains("eos_token_id") || config.at("eos_token_id").is_null()) return OkStatus();
  const json& value = config.at("eos_token_id");
  const json list = value.is_array() ? value : json::array({value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      return Error(StatusCode::kDataLoss, "{}: eos_token_id {} is not a token id below {}", where,
                   id.dump(), vocab_size);
    }
    const int eos = id.get<int>();
    if (std::find(eos_ids->begin(), eos_ids->end(), eos) == eos_ids->end()) eos_ids->push_back(eos);
  }
  return OkStatus();
}

}  // namespace

StatusOr<ModelConfig> ParseModelConfig(const json& config, const std::string& where) {
  if (!config.is_object()) return Error(StatusCode::kDataLoss, "{}: not a JSON object", where);
  const ConfigFields fields(config, where);
  ModelConfig c;
  KVL_RETURN_IF_ERROR(ReadFamily(fields, &c));
  c.ChooseContext(c.max_seq_len);
  KVL_ASSIGN_OR_RETURN(c.bos_id, fields.IntegerOr("bos_token_id", -1, -1, c.vocab_size - 1));
  KVL_RETURN_IF_ERROR(AppendEosIds(config, where, c.vocab_size, &c.eos_ids));
  return c;
}

StatusOr<ModelConfig> LoadModelConfig(const std::string& directory) {
  if (!DirectoryExists(directory)) {
    return Error(StatusCode::kNotFound,
                 "{}: no such directory; give a Hugging Face model directory", directory);
  }
  const std::string path = directory + "/config.json";
  if (!FileExists(path)) {
    return Error(StatusCode::kNotFound, "{}: not a model directory (it has no config.json)",
                 directory);
  }
  KVL_ASSIGN_OR_RETURN(const json config, ReadJsonFile(path));
  KVL_ASSIGN_OR_RETURN(ModelConfig c, ParseModelConfig(config, path));
  const std::string generation_path = directory + "/generation_config.json";
  if (FileExists(generation_path)) {
    KVL_ASSIGN_OR_RETURN(const json generation, ReadJsonFile(generation_path));
    if (generation.is_object()) {
      KVL_RETURN_IF_ERROR(AppendEosIds(generation, generation_path, c.vocab_size, &c.eos_ids));
    }
  }
  return c;
}

}  // namespace kvlathe
