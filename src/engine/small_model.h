// What tests of requests on a small random model share.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "model/config.h"

namespace kvlathe {

inline constexpr int kVocabSize = 128;

inline ModelConfig SmallConfig(int head_dim) {
  ModelConfig c;
  c.model_type = "llama";
  c.n_layers = 2;
  c.hidden_dim = 128;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = head_dim;
  c.ffn_dim = 352;
  c.vocab_size = kVocabSize;
  c.max_seq_len = 1024;
  return c;
}

// What one request saw and gave.
struct Trace {
  RequestOutcome outcome;
  std::vector<std::vector<float>> logits;  // behind each token

  bool operator==(const Trace& other) const {
    return outcome.tokens == other.outcome.tokens && logits == other.logits &&
           outcome.kv_bytes.total() == other.outcome.kv_bytes.total();
  }
};

}  // namespace kvlathe
