// The small operators between the matrix products: norm, rotary embedding, gate, conversions.
// Single-threaded; the caller splits rows over workers. The set for an instruction set is chosen
// once. Output types are kF32 or kBf16 (rounded to nearest even).
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "machine/xielu_numbers.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct ElementwiseKernels {
  // out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. x and out [n_rows, n_dims], dense; an F32
  // `out` may be x itself.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n_rows, int64_t n_dims,
                   DType out_type, void* out);
  // out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) * weight + bias, the variance over
  // n_dims (not n_dims - 1). Same shapes.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps,
                     int64_t n_rows, int64_t n_dims, DType out_type, void* out);
  // Half-layout rotary embedding (channel i pairs with i + rope_dim / 2) of one head row:
  // x [head_dim] f32, cos and sin [rope_dim / 2] f32; channels from rope_dim on are copied.
  // An F32 `out` may be x itself.
  void (*rope)(const float* x, const float* cos, const float* sin, int rope_dim, int head_dim,
               DType out_type, void* out);
  // out[t][i] = silu(gate_up[t][i]) * gate_up[t][ffn_dim + i], silu(g) = g / (1 + exp(-g)) to a
  // relative 1e-6 (0 for g < -88). gate_up [n_rows, 2 ffn_dim] f32, out [n_rows, ffn_dim].
  void (*swiglu)(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out);
  // GELU of n values: x Phi(x) with the normal distribution Phi, and the approximation
  // x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3), that GPT-2 and others were trained
  // with. Both to a relative 2e-6 for x > -5 and to 1e-9 below.
  void (*gelu)(const float* x, int64_t n, DType out_type, void* out);
  void (*gelu_tanh)(const float* x, int64_t n, DType out_type, void* out);
  // Rounds n floats.
  void (*convert)(const float* x, int64_t n, DType out_type, void* out);
  // gram[i][j] += x[t][i] x[t][j] for every t in turn, where j >= i / 16 * 16; below that `gram`
  // keeps what it holds. x [n_rows, n_dims] dense, n_dims a multiple of 16. How rows are cut into
  // calls does not change a bit.
  void (*add_gram)(const float* x, int64_t n_rows, int64_t n_dims, float* gram);
  // x[i] = exp(scale x[i]) / sum of those, n >= 1, to a relative 1e-6.
  void (*softmax)(float* x, int64_t n, float scale);
  // KL divergence, in nats, of the distribution with logits `to` from that with logits `from`,
  // n >= 1; its error is 1e-6 and less on average.
  double (*kl)(const float* from, const float* to, int64_t n);
  // As swiglu with gelu_tanh in the place of silu, as exact as gelu_tanh is.
  void (*geglu_tanh)(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                     void* out);
  // max(0, x)^2 of n values.
  void (*relu2)(const float* x, int64_t n, DType out_type, void* out);
  // xIELU of n values, to 3e-7 of the largest of its terms.
  void (*xielu)(const XieluNumbers& numbers, const float* x, int64_t n, DType out_type, void* out);
  // As swiglu with g sigmoid(1.702 g) in the place of silu and u + 1 in that of what it multiplies;
  // before it gates g become at most 7, and u lies in [-7, 7].
  void (*clamped_swiglu)(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                         void* out);
};

// Of clamped_swiglu, as gpt-oss has it.
inline constexpr float kGateLimit = 7;
inline constexpr float kSigmoidSlope = 1.702f;

const ElementwiseKernels& GetElementwiseKernels(Isa isa);

}  // namespace kvlathe
