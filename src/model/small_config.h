// Tests load a small model of this shape with random weights.
#pragma once

#include "model/config.h"

namespace kvlathe {

inline constexpr int kSmallVocabulary = 128;

inline ModelConfig SmallConfig(int head_dim = 32) {
  ModelConfig c;
  c.model_type = "llama";
  c.n_layers = 2;
  c.hidden_dim = 64;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = head_dim;
  c.ffn_dim = 96;
  c.vocab_size = kSmallVocabulary;
  c.max_seq_len = 512;
  return c;
}

}  // namespace kvlathe
