// The part of one product that a worker computes, and the kernels that compute it. Light enough
// for files compiled with instruction set flags.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear/matrix_layout.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct QuantizedRows;

// y [n_rows, n_out] = x [n_rows, n_in] W^T. Pointers stand at the first row and output of the part;
// the first output is a multiple of kOutBlock.
struct LinearPart {
  DType x_type;
  int64_t n_rows;
  int64_t n_out;
  int64_t n_in;
  const void* x;
  int64_t x_stride;               // elements
  const QuantizedRows* integers;  // the rows as integers of 8 bits; null: as x has them
  const void* w;     // Bf16: [n_out / 64][w_stride / 2][64][2]; F32: [n_in][w_stride]; blocks:
                     // groups of 16 outputs
  int64_t w_stride;  // Bf16: n_in padded; F32: n_out of the whole matrix padded; blocks: bytes
                     // from group to group
  const float* bias;
  void* y;
  int64_t y_stride;  // elements
  DType y_type;
  bool accumulate;
};

// Portable. Weights and x are of the type in the name.
void MultiplyBf16Scalar(const LinearPart& part);
void MultiplyF32Scalar(const LinearPart& part);

// In F32 with AVX2. Read Bf16 weights once per 64 rows, F32 weights once per 16.
void MultiplyBf16Avx2(const LinearPart& part);
void MultiplyF32Avx2(const LinearPart& part);

// With AVX-512 BF16 dot products. Reads the weights once per 64 rows.
void MultiplyBf16Avx512(const LinearPart& part);

// y rows from F32 rows: stored, added (F32 y) or rounded (Bf16 y).
struct StoreRowsParams {
  const float* from;  // [n_rows, n_out], dense
  int64_t n_rows;
  int64_t n_out;
  void* y;
  int64_t y_stride;
  DType y_type;
  bool accumulate;
};
void StoreRowsAvx2(const StoreRowsParams& params);

}  // namespace kvlathe
