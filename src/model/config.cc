#include "model/config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/files.h"

namespace kvlathe {
namespace {

using nlohmann::json;

// Typed access to one JSON object with errors that name the file and the key.
class Fields {
 public:
  Fields(const json& object, const std::string& where) : object_(object), where_(where) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  StatusOr<int> Integer(const char* key, int64_t low, int64_t high) const {
    if (!Has(key)) return Missing(key);
    const json& value = object_.at(key);
    const int64_t number = value.is_number_integer() ? value.get<int64_t>() : low - 1;
    const bool wraps = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(high);
    if (number < low || number > high || wraps) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected an integer from {} to {}",
                   where_, key, value.dump(), low, high);
    }
    return static_cast<int>(number);
  }
  StatusOr<int> IntegerOr(const char* key, int fallback, int64_t low, int64_t high) const {
    if (!Has(key)) return fallback;
    return Integer(key, low, high);
  }
  StatusOr<double> NumberOr(const char* key, double fallback, double low, double high) const {
    if (!Has(key)) return fallback;
    const json& value = object_.at(key);
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= low && number <= high)) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected a number from {} to {}", where_,
                   key, value.dump(), low, high);
    }
    return number;
  }
  StatusOr<bool> BoolOr(const char* key, bool fallback) const {
    if (!Has(key)) return fallback;
    if (!object_.at(key).is_boolean()) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected true or false", where_, key,
                   object_.at(key).dump());
    }
    return object_.at(key).get<bool>();
  }
  StatusOr<std::string> StringOr(const char* key, std::string fallback) const {
    if (!Has(key)) return fallback;
    if (!object_.at(key).is_string()) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected a string", where_, key,
                   object_.at(key).dump());
    }
    return object_.at(key).get<std::string>();
  }
  const json& object() const { return object_; }

 private:
  Status Missing(const char* key) const {
    return Error(StatusCode::kDataLoss, "{}: '{}' is missing", where_, key);
  }
  const json& object_;
  const std::string& where_;
};

constexpr int kMaxDim = 1 << 20;

StatusOr<RopeConfig> ParseRope(const Fields& fields, const std::string& where) {
  RopeConfig rope;
  KVL_ASSIGN_OR_RETURN(rope.theta, fields.NumberOr("rope_theta", 10000, 1, 1e12));
  if (!fields.Has("rope_scaling")) return rope;
  const json& scaling = fields.object().at("rope_scaling");
  if (!scaling.is_object()) {
    return Error(StatusCode::kDataLoss, "{}: 'rope_scaling' is not an object", where);
  }
  const Fields inner(scaling, where);
  KVL_ASSIGN_OR_RETURN(const std::string old_name, inner.StringOr("type", "default"));
  KVL_ASSIGN_OR_RETURN(const std::string type, inner.StringOr("rope_type", old_name));
  if (type == "default") return rope;
  KVL_ASSIGN_OR_RETURN(rope.factor, inner.NumberOr("factor", 1, 1, 1e6));
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    return rope;
  }
  if (type == "llama3") {
    rope.scaling = RopeConfig::Scaling::kLlama3;
    KVL_ASSIGN_OR_RETURN(rope.low_freq_factor, inner.NumberOr("low_freq_factor", 1, 1e-3, 1e6));
    KVL_ASSIGN_OR_RETURN(rope.high_freq_factor, inner.NumberOr("high_freq_factor", 4, 1e-3, 1e6));
    KVL_ASSIGN_OR_RETURN(rope.original_max_position,
                         inner.NumberOr("original_max_position_embeddings", 8192, 1, 1e9));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return Error(StatusCode::kDataLoss,
                   "{}: rope_scaling: high_freq_factor must exceed low_freq_factor", where);
    }
    return rope;
  }
  return Error(StatusCode::kUnimplemented,
               "{}: rope_scaling type '{}' is not supported; supported: default, linear, llama3",
               where, type);
}

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

Status CheckFamily(const Fields& fields, const std::string& where, const std::string& model_type) {
  const bool known = model_type == "llama" || model_type == "qwen2" || model_type == "mistral";
  if (!known) {
    return Error(
        StatusCode::kUnimplemented,
        "{}: model_type '{}' is not supported; supported: llama (Llama, Yi), mistral without a "
        "sliding window, qwen2",
        where, model_type);
  }
  KVL_ASSIGN_OR_RETURN(const std::string act, fields.StringOr("hidden_act", "silu"));
  if (act != "silu") {
    return Error(StatusCode::kUnimplemented,
                 "{}: hidden_act '{}' is not supported; supported: silu", where, act);
  }
  KVL_ASSIGN_OR_RETURN(const bool uses_window,
                       fields.BoolOr("use_sliding_window", model_type == "mistral"));
  if (uses_window && fields.Has("sliding_window")) {
    return Error(StatusCode::kUnimplemented,
                 "{}: attention in a sliding window is not supported yet", where);
  }
  if (fields.Has("quantization_config")) {
    return Error(StatusCode::kUnimplemented,
                 "{}: quantised weights are not supported; use the BF16, F16 or F32 model", where);
  }
  return OkStatus();
}

}  // namespace

std::string RopeConfig::Describe() const {
  switch (scaling) {
    case Scaling::kNone:
      return fmt::format("half theta={}", theta);
    case Scaling::kLinear:
      return fmt::format("half theta={} linear factor={}", theta, factor);
    case Scaling::kLlama3:
      return fmt::format("half theta={} llama3 factor={} low={} high={} original={}", theta, factor,
                         low_freq_factor, high_freq_factor, original_max_position);
  }
  return "";
}

StatusOr<ModelConfig> ParseModelConfig(const json& config, const std::string& where) {
  if (!config.is_object()) return Error(StatusCode::kDataLoss, "{}: not a JSON object", where);
  const Fields fields(config, where);
  ModelConfig c;
  KVL_ASSIGN_OR_RETURN(c.model_type, fields.StringOr("model_type", ""));
  KVL_RETURN_IF_ERROR(CheckFamily(fields, where, c.model_type));
  KVL_ASSIGN_OR_RETURN(c.n_layers, fields.Integer("num_hidden_layers", 1, 1024));
  KVL_ASSIGN_OR_RETURN(c.hidden_dim, fields.Integer("hidden_size", 16, kMaxDim));
  KVL_ASSIGN_OR_RETURN(c.n_heads, fields.Integer("num_attention_heads", 1, 1024));
  KVL_ASSIGN_OR_RETURN(c.n_kv_heads, fields.IntegerOr("num_key_value_heads", c.n_heads, 1, 1024));
  if (c.n_heads % c.n_kv_heads != 0) {
    return Error(StatusCode::kDataLoss, "{}: {} attention heads cannot share {} key/value heads",
                 where, c.n_heads, c.n_kv_heads);
  }
  KVL_ASSIGN_OR_RETURN(c.head_dim,
                       fields.IntegerOr("head_dim", c.hidden_dim / c.n_heads, 1, kMaxDim));
  if (c.head_dim % 16 != 0 || c.head_dim > 256) {
    return Error(StatusCode::kUnimplemented,
                 "{}: head_dim {} is not supported; supported: multiples of 16 up to 256", where,
                 c.head_dim);
  }
  KVL_ASSIGN_OR_RETURN(c.ffn_dim, fields.Integer("intermediate_size", 1, kMaxDim));
  KVL_ASSIGN_OR_RETURN(c.vocab_size, fields.Integer("vocab_size", 1, 1 << 24));
  KVL_ASSIGN_OR_RETURN(c.max_seq_len, fields.Integer("max_position_embeddings", 1, 1 << 26));
  KVL_ASSIGN_OR_RETURN(const double eps, fields.NumberOr("rms_norm_eps", 1e-6, 0, 1));
  c.rms_norm_eps = static_cast<float>(eps);
  KVL_ASSIGN_OR_RETURN(c.rope, ParseRope(fields, where));
  KVL_ASSIGN_OR_RETURN(c.tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  KVL_ASSIGN_OR_RETURN(const bool attention_bias, fields.BoolOr("attention_bias", false));
  c.qkv_bias = attention_bias || c.model_type == "qwen2";
  c.o_bias = attention_bias && c.model_type != "qwen2";
  KVL_ASSIGN_OR_RETURN(c.mlp_bias, fields.BoolOr("mlp_bias", false));
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
