// What tests of requests on a small random model share.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "model/config.h"
#include "model/small_config.h"

namespace kvlathe {

// The small model, wider.
inline ModelConfig WideConfig(int head_dim) {
  ModelConfig c = SmallConfig(head_dim);
  c.hidden_dim = 128;
  c.ffn_dim = 352;
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
