// Weights, cache rows and activations have these element types; conversions between them are here
// too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvlathe {

enum class DType { kF32, kF16, kBf16 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
std::string_view DTypeName(DType dtype);  // "F32", "F16", "BF16": the names of safetensors

// Storage types: no arithmetic, so that every conversion is visible.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float ToFloat(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float ToFloat(float x) { return x; }
float ToFloat(F16 x);

// Round to nearest even; NaN stays NaN.
inline Bf16 ToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
F16 ToF16(float x);

template <typename T>
constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;

// Converts n consecutive elements. `dtype` is the type of the side that is not float.
void ConvertToFloat(DType dtype, const void* from, int64_t n, float* to);
void ConvertFromFloat(DType dtype, const float* from, int64_t n, void* to);

}  // namespace kvlathe
