// A product of RowVerbs with addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/weights/row_products.h"
#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe {

// ProductPlan, of all outputs of a matrix or some.
struct PlacedProduct {
  WeightType type = WeightType::kBf16;
  const std::byte* w = nullptr;
  int64_t w_row_bytes = 0;
  int64_t n_rows = 0, n_out = 0, n_in = 0;
  DType x_type = DType::kF32;
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  const float* bias = nullptr;
  std::byte* y = nullptr;
  int64_t y_stride = 0;
  DType y_type = DType::kF32;
  bool accumulate = false;

  cuda::RowProduct ToRowProduct() const {
    return {.w = w,
            .w_row_bytes = w_row_bytes,
            .x = x,
            .x_stride = x_stride,
            .y = y,
            .y_stride = y_stride,
            .bias = bias,
            .n_rows = static_cast<int>(n_rows),
            .n_out = static_cast<int>(n_out),
            .n_in = static_cast<int>(n_in)};
  }
};

}  // namespace kvlathe
