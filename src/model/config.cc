#include "model/config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "io/files.h"
#include "model/families/config_families.h"
#include "model/families/gguf/gguf_config.h"
#include "model/families/text_part.h"
#include "model/retrofits/dms_config.h"

namespace kvlathe {
namespace {

bool IsThere(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

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

// The object that a retrofit leaves. Which channel it is must be said; the rest is by default what
// the paper or the released code has for it.
Status ReadDmc(const json& config, const std::string& where, ModelConfig* c) {
  if (!config.contains("dmc") || config.at("dmc").is_null()) return OkStatus();
  if (!config.at("dmc").is_object()) {
    return Error(StatusCode::kDataLoss, "{}: 'dmc' is not an object", where);
  }
  const std::string in_dmc = where + ": dmc";
  const ConfigFields fields(config.at("dmc"), in_dmc);
  KVL_ASSIGN_OR_RETURN(const std::string channel, fields.StringOr("channel", ""));
  if (channel != "first" && channel != "last") {
    return Error(StatusCode::kDataLoss, "{}: 'channel' is '{}'; expected first or last", in_dmc,
                 channel);
  }
  DmcConfig dmc;
  dmc.is_last = channel == "last";
  KVL_ASSIGN_OR_RETURN(const double offset,
                       fields.NumberOr("offset", dmc.is_last ? 5 : 0, -100, 100));
  KVL_ASSIGN_OR_RETURN(const double weight_offset,
                       fields.NumberOr("weight_offset", offset, -100, 100));
  KVL_ASSIGN_OR_RETURN(const double epsilon,
                       fields.NumberOr("epsilon", dmc.is_last ? 0.0078125 : 0, 0, 1));
  KVL_ASSIGN_OR_RETURN(dmc.zeroes_after_rope, fields.BoolOr("zero_after_rope", dmc.is_last));
  dmc.offset = static_cast<float>(offset);
  dmc.weight_offset = static_cast<float>(weight_offset);
  dmc.epsilon = static_cast<float>(epsilon);
  c->dmc = dmc;
  return OkStatus();
}

// The name of a GGUF file in a directory, the first in order of names; empty if there is none.
std::string GgufFileIn(const std::string& directory) {
  std::string first;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(".gguf") && (first.empty() || name < first)) first = name;
  }
  return first;
}

}  // namespace

StatusOr<ModelConfig> ParseModelConfig(const json& config, const std::string& where) {
  if (!config.is_object()) return Error(StatusCode::kDataLoss, "{}: not a JSON object", where);
  KVL_ASSIGN_OR_RETURN(const json text, TextPart(config, where));
  const ConfigFields fields(text, where);
  ModelConfig c;
  KVL_RETURN_IF_ERROR(ReadFamily(fields, &c));
  KVL_RETURN_IF_ERROR(ReadDmc(text, where, &c));
  KVL_RETURN_IF_ERROR(ReadDms(fields, &c));
  c.ChooseContext(c.max_seq_len);
  KVL_ASSIGN_OR_RETURN(c.bos_id, fields.IntegerOr("bos_token_id", -1, -1, c.vocab_size - 1));
  KVL_RETURN_IF_ERROR(AppendEosIds(text, where, c.vocab_size, &c.eos_ids));
  return c;
}

StatusOr<ModelConfig> LoadModelConfig(const std::string& model) {
  if (!DirectoryExists(model)) {
    if (!FileExists(model) && IsThere(model)) {
      return Error(
          StatusCode::kInvalidArgument,
          "{}: neither a regular file nor a directory; give a Hugging Face model directory "
          "or a .gguf file",
          model);
    }
    if (!FileExists(model)) {
      return Error(StatusCode::kNotFound,
                   "{}: no such file or directory; give a Hugging Face model directory or a .gguf "
                   "file",
                   model);
    }
    KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
    return ReadGgufConfig(file);
  }
  const std::string path = model + "/config.json";
  if (!FileExists(path)) {
    const std::string gguf = GgufFileIn(model);
    return Error(StatusCode::kNotFound, "{}: not a model directory (it has no config.json){}",
                 model, gguf.empty() ? "" : fmt::format("; it holds {}: give that file", gguf));
  }
  KVL_ASSIGN_OR_RETURN(const json config, ReadJsonFile(path));
  KVL_ASSIGN_OR_RETURN(ModelConfig c, ParseModelConfig(config, path));
  KVL_RETURN_IF_ERROR(ReadDmsMetadata(model, &c));
  const std::string generation_path = model + "/generation_config.json";
  if (FileExists(generation_path)) {
    KVL_ASSIGN_OR_RETURN(const json generation, ReadJsonFile(generation_path));
    if (generation.is_object()) {
      KVL_RETURN_IF_ERROR(AppendEosIds(generation, generation_path, c.vocab_size, &c.eos_ids));
    }
  }
  return c;
}

}  // namespace kvlathe
