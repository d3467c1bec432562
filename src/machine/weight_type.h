// How the numbers of a weight matrix are stored on a machine. Each type is a layout with products
// of its own; those of the CPU are registered in cpu/kernels/linear/weight_formats.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace kvlathe {

enum class WeightType : uint8_t {
  kBf16,  // 16 bits, multiplied with Bf16 rows
  kF32,   // 32 bits, multiplied with F32 rows
  // Blocks of ggml (https://github.com/ggml-org/ggml), in which values share scales. Rows that they
  // are multiplied with are Bf16, which become integers of 8 bits in blocks of 32, or F32, which
  // stay so.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
};

inline constexpr WeightType kWeightTypes[] = {
    WeightType::kBf16,  WeightType::kF32,   WeightType::kQ4_0, WeightType::kQ4_1,
    WeightType::kQ5_0,  WeightType::kQ5_1,  WeightType::kQ8_0, WeightType::kQ2_K,
    WeightType::kQ3_K,  WeightType::kQ4_K,  WeightType::kQ5_K, WeightType::kQ6_K,
    WeightType::kIq4Nl, WeightType::kIq4Xs, WeightType::kMxfp4};

constexpr bool HasBlocks(WeightType type) { return type >= WeightType::kQ4_0; }

// As options and messages name it, lower-case: "q4_k".
constexpr std::string_view WeightTypeName(WeightType type) {
  constexpr std::array<std::string_view, 15> kNames = {"bf16", "f32",  "q4_0",   "q4_1",   "q5_0",
                                                       "q5_1", "q8_0", "q2_k",   "q3_k",   "q4_k",
                                                       "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};
  return kNames[static_cast<size_t>(type)];
}

// Weights of as many bits as the rows that they are multiplied with: kBf16 or kF32.
constexpr WeightType DenseWeights(DType rows) {
  return rows == DType::kF32 ? WeightType::kF32 : WeightType::kBf16;
}

}  // namespace kvlathe
