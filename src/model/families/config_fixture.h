// Configs of published models that tests of readers change, and what parsing one says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace kvlathe {

inline nlohmann::json LlamaJson() {
  return {{"model_type", "llama"},
          {"hidden_size", 2048},
          {"num_hidden_layers", 16},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"intermediate_size", 8192},
          {"vocab_size", 128256},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},
          {"bos_token_id", 128000},
          {"eos_token_id", {128001, 128008}}};
}

inline nlohmann::json Phi3Json() {
  nlohmann::json json = LlamaJson();
  json["model_type"] = "phi3";
  json["hidden_size"] = 3072;
  json["num_key_value_heads"] = 32;
  json["original_max_position_embeddings"] = 4096;
  json["rope_theta"] = 10000.0;
  json["rope_scaling"] = {{"type", "longrope"},
                          {"short_factor", std::vector<double>(48, 1.5)},
                          {"long_factor", std::vector<double>(48, 20)}};
  json["sliding_window"] = 262144;
  return json;
}

inline StatusOr<ModelConfig> ParsedJson(const nlohmann::json& config) {
  return ParseModelConfig(config, "config.json");
}

inline Status ErrorOfJson(const nlohmann::json& config) {
  return ParseModelConfig(config, "config.json").status();
}

// The config of a small model of a family, with `fields` in place of or beside those of a Llama.
inline nlohmann::json SmallJson(const std::string& family, const nlohmann::json& fields) {
  nlohmann::json config = {
      {"model_type", family},     {"hidden_size", 64},        {"num_hidden_layers", 4},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 16},
      {"intermediate_size", 96},  {"vocab_size", 100},        {"max_position_embeddings", 8192}};
  if (!fields.is_null()) config.update(fields);
  return config;
}

}  // namespace kvlathe
