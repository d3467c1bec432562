#include "tensor/dtype.h"

#include <cstring>

namespace kvlathe {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBf16:
      return "BF16";
  }
  return "?";
}

float ToFloat(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

F16 ToF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // subnormal: let float addition round to the 2^-24 grid
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

namespace {

// ToBf16 of each, without its branch, so that the loop takes vectors.
void RoundAll(const float* __restrict from, int64_t n, Bf16* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const auto u = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    const bool is_nan = static_cast<int32_t>(u & 0x7fffffffu) > 0x7f800000;
    to[i].bits = static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
  }
}

}  // namespace

void ConvertToFloat(DType dtype, const void* from, int64_t n, float* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, n * sizeof(float));
      return;
    case DType::kBf16: {
      const Bf16* x = static_cast<const Bf16*>(from);
      for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(x[i]);
      return;
    }
    case DType::kF16: {
      const F16* x = static_cast<const F16*>(from);
      for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(x[i]);
      return;
    }
  }
}

void ConvertFromFloat(DType dtype, const float* from, int64_t n, void* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, n * sizeof(float));
      return;
    case DType::kBf16: {
      Bf16* y = static_cast<Bf16*>(to);
      RoundAll(from, n, y);
      return;
    }
    case DType::kF16: {
      F16* y = static_cast<F16*>(to);
      for (int64_t i = 0; i < n; ++i) y[i] = ToF16(from[i]);
      return;
    }
  }
}

}  // namespace kvlathe
