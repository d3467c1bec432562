// Rows of weights as plain numbers on a GPU: for products of many rows, for embeddings, and for who
// reads weights back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// Row t of out becomes row rows[t] of W, or row t from `w` on. As F32 it has the bits that
// DequantizeBlocks (io/gguf/ggml_types.h) gives, as BF16 those rounded once.
struct WideRowsParams {
  WeightType type = WeightType::kBf16;
  const std::byte* w = nullptr;  // rows that begin at multiples of 16, w_row_bytes apart
  int64_t w_row_bytes = 0;
  const int32_t* rows = nullptr;  // [n_rows] in the memory of the device; null: all in order
  int n_rows = 0;
  int n_in = 0;
  DType out_type = DType::kF32;
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
};
void WidenRows(cudaStream_t stream, const WideRowsParams& params);

}  // namespace kvlathe::cuda
