// How each layout calls its tensors, which of them are fused and in which order.
#pragma once

#include "model/config.h"
#include "model/tensor_source.h"

namespace kvlathe {

// Names of one layout, without ".weight" and ".bias".
// Tensors of the experts of a layer, without ".weight" and ".bias". Where a name has "{}", each
// expert has a tensor, and its number stands there; else one tensor holds those of all experts, one
// behind the other.
struct ExpertTable {
  const char* router = "mlp.gate";
  const char* choice_bias = "";                   // the whole name
  const char* gate = "mlp.experts.{}.gate_proj";  // empty: `up` holds both, gate first
  const char* up = "mlp.experts.{}.up_proj";
  const char* down = "mlp.experts.{}.down_proj";
  bool takes_turns = false;     // gate and up row by row, gate first, in `up`
  bool is_transposed = false;   // each is stored [n_in, n_out]
  bool has_bare_names = false;  // no ".weight"; and "_bias" in place of ".bias"
  const char* shared_gate = "mlp.shared_expert.gate_proj";  // as of gate
  const char* shared_up = "mlp.shared_expert.up_proj";
  const char* shared_down = "mlp.shared_expert.down_proj";
  const char* shared_router = "mlp.shared_expert_gate";  // with has_shared_gate
};

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
  ExpertTable experts;
  Fused fused = Fused::kQueriesKeysValues;
  bool is_transposed = false;  // matrices of layers are stored [n_in, n_out]
  float norm_offset = 0;       // what a norm multiplies by is what is stored plus this
};

// Some files leave prefixes out, or have in one tensor what others have in three; the source tells.
WeightTable TableOf(const ModelConfig& config, const TensorSource& source);

}  // namespace kvlathe
