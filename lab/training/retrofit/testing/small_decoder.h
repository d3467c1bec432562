// The trainer's tests have this Llama model in common.
#pragma once

#include "model/config.h"

namespace kvlathe {

inline ModelConfig SmallDecoder(bool tied) {
  ModelConfig config;
  config.model_type = "llama";
  config.n_layers = 2;
  config.hidden_dim = 32;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 16;
  config.ffn_dim = 48;
  config.vocab_size = 50;
  config.max_seq_len = 512;
  config.tie_word_embeddings = tied;
  config.bos_id = 1;
  config.eos_ids = {2};
  return config;
}

}  // namespace kvlathe
