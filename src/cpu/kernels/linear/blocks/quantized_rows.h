// Rows that weights in blocks are multiplied with, as integers of 8 bits: x = scale * code in every
// 32 inputs. Light enough for files compiled with instruction set flags.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe {

// Of 32 inputs of a row.
struct RowBlock {
  float scale;               // largest |x| / 127; NaN where one of them is not finite
  float minus_sum;           // -scale * the sum of codes
  float minus_half_sums[2];  // the same of 16
};

// [n_rows, n_in], n_in a multiple of 32.
struct QuantizedRows {
  const int8_t* codes = nullptr;  // in [-127, 127]
  int64_t stride = 0;
  const RowBlock* blocks = nullptr;
  int64_t block_stride = 0;

  QuantizedRows From(int64_t row) const {
    return {codes + row * stride, stride, blocks + row * block_stride, block_stride};
  }
  // From an input on, a multiple of 32.
  QuantizedRows FromInput(int64_t in) const {
    return {codes + in, stride, blocks + in / 32, block_stride};
  }
};

// Where no |x| of 32 reaches it, all codes are zero.
inline constexpr float kSmallestBlockMax = 1e-30f;

// One row of Bf16 or F32 numbers; every instruction set gives the same bits.
void QuantizeRowScalar(DType x_type, const void* x, int64_t n_in, int8_t* codes, RowBlock* blocks);
void QuantizeRowAvx2(DType x_type, const void* x, int64_t n_in, int8_t* codes, RowBlock* blocks);

}  // namespace kvlathe
