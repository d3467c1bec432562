// What the forward pass shows to those who gather statistics (calibration, inspection).
#pragma once

namespace kvlathe {

// Queries, keys and values of one layer for one chunk of tokens of one sequence, before any
// compression. All row-major f32; valid only during the call.
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
};

class QkvObserver {
 public:
  virtual ~QkvObserver() = default;
  // Called on the thread that runs the forward pass, once per layer and chunk, layers in order.
  virtual void Observe(const QkvView& view) = 0;
};

}  // namespace kvlathe
