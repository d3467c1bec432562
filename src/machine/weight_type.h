// How the numbers of a weight matrix are stored on a machine. Each type is a layout with products
// of its own; those of the CPU are registered in cpu/kernels/linear/weight_formats.cc.
#pragma once

#include "tensor/dtype.h"

namespace kvlathe {

enum class WeightType {
  kBf16,  // 16 bits, multiplied with Bf16 rows
  kF32,   // 32 bits, multiplied with F32 rows
};

// Weights of as many bits as the rows that they are multiplied with: kBf16 or kF32.
constexpr WeightType DenseWeights(DType rows) {
  return rows == DType::kF32 ? WeightType::kF32 : WeightType::kBf16;
}

}  // namespace kvlathe
