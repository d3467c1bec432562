// Gates of feed-forward parts that few families have, in plain loops for all instruction sets.
// Single-threaded. Output types are kF32 or kBf16 (rounded to nearest even).
#pragma once

#include <cstdint>

#include "machine/plans.h"
#include "tensor/dtype.h"

namespace kvlathe {

// max(0, x)^2 of n values.
void Relu2(const float* x, int64_t n, DType out_type, void* out);
// xIELU of n values (XieluNumbers).
void Xielu(const XieluNumbers& numbers, const float* x, int64_t n, DType out_type, void* out);
// out[t][i] = g sigmoid(1.702 g) (u + 1) with g = min(gate_up[t][i], 7) and u = gate_up[t][ffn_dim
// + i] clamped to [-7, 7]. gate_up [n_rows, 2 ffn_dim], out [n_rows, ffn_dim].
void ClampedSwiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                   void* out);

}  // namespace kvlathe
