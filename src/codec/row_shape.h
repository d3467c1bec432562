// What a cache needs to know of a model's attention, without its weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace kvlathe {

// Said by hand, for a model that has no config.json.
struct RowShape {
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;  // divides n_heads
  int head_dim = 0;    // a multiple of 16, at most 256
  int max_positions = 0;
  std::optional<double> rope_theta;  // none: queries and keys do not turn
  double rotary_fraction = 1;        // of head_dim; channels behind it do not turn
  std::vector<int> windows = {};     // newest positions that each layer sees, 0: all; or empty
  double score_cap = 0;              // scores become cap tanh(score / cap); 0: stay as they are
  bool has_sink_logits = false;      // calls give CodecRows::sink_logits
};

// A config of which only what concerns attention is set. kInvalidArgument names the number that
// cannot be.
StatusOr<ModelConfig> ConfigOf(const RowShape& shape);

// Of the text of a config.json; errors, which begin with `where`, are those of ParseModelConfig.
// What a retrofit has taught the weights to decide is left out: rows alone do not show it.
StatusOr<ModelConfig> ReadAttentionConfig(const std::string& json, const std::string& where);
// Of a config.json, a folder that has one, or a GGUF file; errors are those of LoadModelConfig.
StatusOr<ModelConfig> LoadAttentionConfig(const std::string& path);

}  // namespace kvlathe
