// The forward pass shows an observer what it computes: those who gather statistics (calibration,
// inspection) are observers.
#pragma once

#include <cstdint>

namespace kvlathe {

// Queries, keys and values of one layer for one chunk of tokens of one sequence, before anything
// but merging. All row-major f32; valid only during the call.
struct QkvView {
  int layer_idx;
  int n_tokens;
  const int* positions;  // [n_tokens], absolute, from 0 at the sequence's first token
  // "pre" and "post" are before and after RoPE (equal in a model without RoPE).
  const float* q_pre;   // [n_tokens, n_heads, head_dim]
  const float* q_post;  // [n_tokens, n_heads, head_dim]
  const float* k_pre;   // [n_tokens, n_kv_heads, head_dim]
  const float* k_post;  // [n_tokens, n_kv_heads, head_dim]
  const float* v;       // [n_tokens, n_kv_heads, head_dim]
  // Where positions merge, keys and values are the means of their entries so far, and this says
  // which of them stay in the cache: the last of each entry in the chunk. [n_kv_heads, n_tokens];
  // null: positions do not merge, and all stay.
  const uint8_t* is_entry = nullptr;
};

// What attention made of values in one layer for such a chunk, before W_O; valid only during the
// call.
struct OutputsView {
  int layer_idx;
  int n_tokens;
  const int* positions;  // [n_tokens]
  const float* outputs;  // [n_tokens, n_heads, head_dim]
};

class QkvObserver {
 public:
  virtual ~QkvObserver() = default;
  // Called on the thread that runs the forward pass, once per layer and chunk, layers in order.
  virtual void Observe(const QkvView& view) = 0;
  // Called likewise, behind Observe of the same layer and chunk, for those who want it.
  virtual bool wants_outputs() const { return false; }
  virtual void ObserveOutputs(const OutputsView& /*view*/) {}
};

}  // namespace kvlathe
