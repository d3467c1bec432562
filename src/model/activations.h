// Activations are what a step computes on its way through a layer. One set serves all layers; it is
// allocated once and grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "machine/machine_buffer.h"
#include "machine/plans.h"
#include "model/number_types.h"
#include "tensor/dtype.h"

namespace kvlathe {

// How many numbers each buffer has per token; 0 if the model has no use for the buffer.
struct ActivationWidths {
  int64_t hidden = 0;
  int64_t qk = 0;
  int64_t v = 0;
  int64_t values = 0;
  int64_t q_full = 0, k_full = 0;
  int64_t q_rows = 0, k_rows = 0;
  int64_t attended = 0;
  int64_t outputs = 0;
  int64_t mlp_in = 0;
  int64_t gated = 0;
  int64_t added = 0;
  int64_t dms_normed = 0, dms_logits = 0;
  int64_t routed_by = 0, routed_in = 0, routed_out = 0;

  // Returns the larger of the two widths of every buffer.
  ActivationWidths Union(const ActivationWidths& other) const;
};

// Buffers of `n_tokens` rows each. Products with weights of the model read rows of
// types.activations; rows on their way to the cache and to attention are of types.rows.
struct Activations {
  Device* memory = nullptr;  // of the machine; the buffers lie in it
  NumberTypes types = DType::kF32;

  int64_t n_tokens = 0;
  std::vector<TokenPlace> tokens;
  // [n_tokens, n_heads + n_kv_heads] of a model with DMC; [n_tokens, n_kv_heads] of one with DMS of
  // which a channel of queries decides.
  std::vector<float> decisions;
  std::vector<int> n_closed;  // [n_kv_heads, n_tokens] MergedRows::n_closed of the layer

  MachineBuffer hidden;  // [n_tokens, hidden_dim] f32, the residual stream
  MachineBuffer normed;  // [n_tokens, hidden_dim] types.activations
  // [n_tokens, (n_heads + n_kv_heads) * head_dim] f32, before RoPE; or, where rows need no turn,
  // types.rows and of the folded width.
  MachineBuffer qk;
  // Whether queries and keys in `qk` are turned to their positions already. Only layers that read
  // no row from before RoPE take such.
  bool are_turned = false;
  MachineBuffer values;  // [n_tokens, n_kv_heads * head_dim] types.rows, before they are mapped,
                         // where no weights do
  MachineBuffer v;       // [n_tokens, sum of rank_v]
  MachineBuffer q_full;  // per KV head [n_tokens * gqa_group, head_dim], after RoPE
  // Per KV head [n_tokens, head_dim]; of the heads that share latents side by side.
  MachineBuffer k_full;
  MachineBuffer q_rows;    // per KV head [n_tokens * gqa_group, rank_k]; empty without a basis
  MachineBuffer k_rows;    // per KV head [n_tokens, rank_k]
  MachineBuffer attended;  // [n_tokens, sum over query heads of LayerRows::OutputWidth]
  MachineBuffer outputs;   // [n_tokens, n_heads * head_dim] where heads share latents
  // [n_tokens, mlp_rows()] f32 and [n_tokens, ffn_dim] types.activations; with experts n_used rows
  // a token, those of an expert side by side.
  MachineBuffer mlp_in;
  MachineBuffer gated;
  MachineBuffer added;  // [n_tokens, hidden_dim] f32, where what is added to the stream is
                        // normalised or summed over ranks
  // Of layers with experts, whose tokens are n_used rows: what routers read, [n_tokens, hidden_dim]
  // f32, where types.activations is another; what experts read, types.activations, and put out, f32
  // and the rows of the shared MLP behind it.
  MachineBuffer routed_by;
  MachineBuffer routed_in;
  MachineBuffer routed_out;
  MachineBuffer dms_normed;  // [n_tokens, hidden_dim] f32, what decides which keys may leave,
  MachineBuffer dms_logits;  // [n_tokens, n_kv_heads] f32, and what it says

  // Makes room for n_tokens rows of every buffer. kResourceExhausted when the system has no memory.
  Status Reserve(const ActivationWidths& widths);
  // Returns the rows of a head in a buffer in which the heads follow each other with rows_per_token
  // rows of every token; the heads before it are width_before numbers wide together.
  ObjectPlace RowsBehind(const MachineBuffer& buffer, int64_t width_before,
                         int rows_per_token) const {
    return buffer.place() + n_tokens * rows_per_token * width_before * SizeOf(types.rows);
  }
};

}  // namespace kvlathe
