// Weights in blocks, 64 outputs at a time, as the numbers that they stand for: for rows that are
// multiplied as they are, and for instruction sets whose products of 16 bits are the faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/weight_type.h"

namespace kvlathe {

// 64 outputs of blocks: group g of 16 begins at w + g * w_stride.
struct BlockPanel {
  WeightType type;
  int64_t n_in;
  const std::byte* w;
  int64_t w_stride;
};

// To the layout of dense weights (cpu/kernels/linear/dense_weights.h) of 64 outputs: Bf16
// [n_in / 2][64][2], rounded once, or F32 [n_in][64].
void WidenToBf16Scalar(const BlockPanel& panel, uint16_t* to);
void WidenToF32Scalar(const BlockPanel& panel, float* to);
void WidenToBf16Avx2(const BlockPanel& panel, uint16_t* to);
void WidenToF32Avx2(const BlockPanel& panel, float* to);

}  // namespace kvlathe
