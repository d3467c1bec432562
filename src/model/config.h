// config.json of a Hugging Face model, checked.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// How positions become angles. Angle of pair i at position p: p * frequency_i, with
// frequency_i = theta^(-2i / rope_dim) changed by the scaling below.
struct RopeConfig {
  enum class Scaling {
    kNone,
    kLinear,  // frequency / factor (position interpolation)
    kLlama3,  // Llama 3.1: long wavelengths / factor, short ones unchanged, smooth in between
  };
  Scaling scaling = Scaling::kNone;
  double theta = 10000;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position = 8192;

  // One line that identifies the angles, for calibration files.
  std::string Describe() const;
};

struct ModelConfig {
  std::string model_type;  // "llama", "qwen2", ...
  int n_layers = 0;
  int hidden_dim = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int ffn_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 0;
  float rms_norm_eps = 1e-5f;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  int bos_id = -1;           // -1: none
  std::vector<int> eos_ids;  // config.json and generation_config.json together

  int gqa_group() const { return n_heads / n_kv_heads; }
};

// kNotFound or kDataLoss when the file is missing or wrong, kUnimplemented (with what is supported)
// for a family or feature that this build does not run. Every number is bounded before use.
StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);
StatusOr<ModelConfig> ParseModelConfig(const nlohmann::json& config, const std::string& where);

}  // namespace kvlathe
