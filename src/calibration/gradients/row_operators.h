// These operators of a decoder work on one row, in F32 and with their gradients: norms and the
// gates of the MLP. Single-threaded; the caller splits rows over workers.
#pragma once

#include <cstdint>

#include "cpu/kernels/elementwise/elementwise.h"
#include "machine/xielu_numbers.h"
#include "model/config.h"

namespace kvlathe {

// y = x / sqrt(mean(x^2) + eps) * weight (RMSNorm), or with a bias (x - mean(x)) /
// sqrt(variance(x) + eps) * weight + bias (LayerNorm).
struct RowNorm {
  const float* weight = nullptr;  // [n_groups, n_dims]; row i has those of group i % n_groups
  const float* bias = nullptr;    // [n_dims]; null: RMSNorm
  float eps = 0;
  int64_t n_dims = 0;
  int64_t n_groups = 1;
};

// Rows are dense, [n_rows, n_dims]; y may be x.
void Normalise(const ElementwiseKernels& kernels, const RowNorm& norm, int64_t n_rows,
               const float* x, float* y);

// From the gradient with respect to y that with respect to x, which takes the place of what is in
// dx or with `accumulate` is added to it. Rows are dense; dx may be dy.
void NormaliseBack(const RowNorm& norm, int64_t n_rows, const float* x, const float* dy,
                   bool accumulate, float* dx);

// What stands between the two matrices of an MLP.
struct RowGate {
  MlpKind mlp = MlpKind::kSwiglu;
  int64_t ffn_dim = 0;
  XieluNumbers xielu = {};  // of MlpKind::kXielu
};

// up [n_rows, 2 ffn_dim] with a gate (gates first) and [n_rows, ffn_dim] without; gated [n_rows,
// ffn_dim].
void Gate(const ElementwiseKernels& kernels, const RowGate& gate, int64_t n_rows, const float* up,
          float* gated);

// From the gradient with respect to `gated` that with respect to `up`.
void GateBack(const RowGate& gate, int64_t n_rows, const float* up, const float* d_gated,
              float* d_up);

}  // namespace kvlathe
