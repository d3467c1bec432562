// Products of few rows with weights on a GPU: y = x W^T + bias. Weights in blocks are read as a
// file has them and are never written in another form.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// One product. Strides in elements.
struct RowProduct {
  const std::byte* w = nullptr;  // [n_out] rows that begin at multiples of 16, w_row_bytes apart
  int64_t w_row_bytes = 0;
  const void* x = nullptr;  // [n_rows, n_in], F32 with weights of F32, else BF16
  int64_t x_stride = 0;
  void* y = nullptr;  // [n_rows, n_out]
  int64_t y_stride = 0;
  const float* bias = nullptr;  // [n_out]; null: none
  int n_rows = 0;
  int n_out = 0;
  int n_in = 0;
};

// What products of one launch have in common.
struct ProductNumbers {
  WeightType type = WeightType::kBf16;
  DType y_type = DType::kF32;
  bool accumulate = false;  // y += (kF32 only)
};

// Whether BF16 rows of x may be read by four numbers: n_in is a multiple of 32, and they begin at
// multiples of 8 bytes.
inline bool InQuads(const RowProduct& product) {
  return product.n_in % 32 == 0 && product.x_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(product.x) % 8 == 0;
}

// None of them reads what another writes; with weights in blocks they are InQuads. A row gets the
// same bits whatever other rows there are: each is multiplied with integers in BF16, summed up in
// F32 and scaled in F32.
void MultiplyRows(cudaStream_t stream, const ProductNumbers& numbers,
                  std::span<const RowProduct> products);

}  // namespace kvlathe::cuda
