// How each layout calls its tensors, which of them are fused and in which order.
#pragma once

#include "model/config.h"
#include "model/tensor_source.h"

namespace kvlathe {

// Names of one layout, without ".weight" and ".bias".
struct WeightTable {
  // The rows of Q, K and V in one tensor.
  enum class Fused {
    kQueriesKeysValues,  // all queries, all keys, all values
    kByKvHead,           // per KV head its queries, its key, its value
  };

  const char* outside = "";  // before names outside the layers
  const char* layers = "";   // before the index of a layer
  const char* embedding = "";
  const char* head = "lm_head";
  const char* positions = "";  // with PositionKind::kLearned
  const char* final_norm = "";
  const char* attn_norm = "";
  const char* ffn_norm = "";
  const char* q_norm = "";
  const char* k_norm = "";
  bool has_norm_of_each_head = false;  // tensors q_norm + ".norms.0", ... in place of q_norm
  const char* attn_out_norm = "";
  const char* ffn_out_norm = "";
  const char* sinks = "";  // the whole name behind the layer
  const char* qkv = "";    // Q, K and V in one tensor; empty: in those of q, k and v
  const char* q = "";
  const char* k = "";
  const char* v = "";
  const char* o = "";
  const char* gate = "";  // empty: the MLP has none, or one tensor holds gate and up
  const char* up = "";
  const char* down = "";
  const char* xielu = "";  // before the names of the four numbers
  Fused fused = Fused::kQueriesKeysValues;
  bool is_transposed = false;  // matrices of layers are stored [n_in, n_out]
  float norm_offset = 0;       // what a norm multiplies by is what is stored plus this
};

// Some files leave prefixes out, or have in one tensor what others have in three; the source tells.
WeightTable TableOf(const ModelConfig& config, const TensorSource& source);

}  // namespace kvlathe
