// Rows that take each other's places, and what else moves rows about on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe::cuda {

// TakeRowsPlan (machine/plans.h) with addresses.
struct TakeRowsParams {
  std::byte* rows = nullptr;
  int64_t row_bytes = 0;
  const int64_t* from = nullptr;  // [n_rows] in the memory of the device
  int64_t n_rows = 0;
};
void TakeRows(cudaStream_t stream, const TakeRowsParams& params);

// TakeChannelPlan (machine/plans.h) with addresses.
struct TakeChannelParams {
  float* rows = nullptr;  // [n_rows, n_dims]
  int64_t n_rows = 0;
  int64_t n_dims = 0;
  int channel = 0;
  int n_channels = 1;
  int channels_apart = 0;
  float* taken = nullptr;  // [n_rows, n_channels]
};
void TakeChannel(cudaStream_t stream, const TakeChannelParams& params);

// out[t] = rows[t] * scale + positions[t], each rounded; zeros in place of rows that are not held.
struct EmbedParams {
  const float* rows = nullptr;       // [n_tokens, n_dims], which may be `out`
  const uint8_t* is_held = nullptr;  // [n_tokens]; null: all are
  const float* positions = nullptr;  // [n_tokens, n_dims]; null: none
  int64_t n_tokens = 0;
  int64_t n_dims = 0;
  float scale = 1;
  float* out = nullptr;
};
void Embed(cudaStream_t stream, const EmbedParams& params);

// y [n_rows, n_out] F32 becomes bias, or y + bias with `adds`, for products that add to it.
struct BiasParams {
  float* y = nullptr;
  int64_t y_stride = 0;
  const float* bias = nullptr;  // [n_out]
  int64_t n_rows = 0;
  int64_t n_out = 0;
  bool adds = false;
};
void PutBias(cudaStream_t stream, const BiasParams& params);

// to [n_rows, n_dims] BF16 from dense F32 rows.
struct RoundParams {
  const float* from = nullptr;  // [n_rows, n_dims]
  void* to = nullptr;
  int64_t to_stride = 0;
  int64_t n_rows = 0;
  int64_t n_dims = 0;
};
void RoundRows(cudaStream_t stream, const RoundParams& params);

}  // namespace kvlathe::cuda
