// c = a b, or c += a b, in F32 on the calling thread, for products of rows that are met once, such
// as scores and gradients of calibration: nothing is packed in advance.
#pragma once

#include <cstdint>

namespace kvlathe {

// Row-major, strides in elements.
struct DenseProduct {
  int64_t n_rows = 0, n_columns = 0, n_inner = 0;
  const float* a = nullptr;  // [n_rows, n_inner]; transposed [n_inner, n_rows]
  int64_t a_stride = 0;
  bool is_a_transposed = false;
  const float* b = nullptr;  // [n_inner, n_columns]; transposed [n_columns, n_inner]
  int64_t b_stride = 0;
  bool is_b_transposed = false;
  float* c = nullptr;  // [n_rows, n_columns]
  int64_t c_stride = 0;
  bool accumulate = false;  // c += a b
};

// Sums are in an unspecified order, which depends on shape and processor only.
void Multiply(const DenseProduct& product);

}  // namespace kvlathe
