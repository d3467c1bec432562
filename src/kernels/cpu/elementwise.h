// The small operators between the matrix products: norm, rotary embedding, gate, conversions.
// Single-threaded; the caller splits rows over workers. The set for an instruction set is chosen
// once.
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct ElementwiseKernels {
  // out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. x [n_rows, n_dims] f32, out row_type.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n_rows, int64_t n_dims,
                   DType out_type, void* out);
  // Half-layout rotary embedding (channel i pairs with i + rope_dim / 2) of one head row:
  // x [head_dim] f32, cos and sin [rope_dim / 2] f32; channels from rope_dim on are copied.
  void (*rope)(const float* x, const float* cos, const float* sin, int rope_dim, int head_dim,
               DType out_type, void* out);
  // out[t][i] = silu(gate_up[t][i]) * gate_up[t][ffn_dim + i]. gate_up [n_rows, 2 ffn_dim] f32.
  void (*swiglu)(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out);
  // Rounds n floats.
  void (*convert)(const float* x, int64_t n, DType out_type, void* out);
};

const ElementwiseKernels& GetElementwiseKernels(Isa isa);

}  // namespace kvlathe
