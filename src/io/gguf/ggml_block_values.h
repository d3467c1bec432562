// The values of one block while it is quantised, in units of a power of two near the largest, so
// that no square of theirs leaves the range of F32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "io/gguf/ggml_fits.h"
#include "tensor/dtype.h"

namespace kvlathe::ggml_fits {

// An F16 number as the block stores it, and what it is in the block's units.
struct Half {
  uint16_t bits = 0;
  float value = 0;
};

template <int kN>
struct BlockValues {
  float value[kN];   // the largest is in [1, 2), if it is within 2^-100 and 2^100
  float weight[kN];  // of squared errors
  float unit;        // a power of two
  float largest;     // in units; 0 if all are zeros

  explicit BlockValues(const float* from) {
    largest = 0;
    for (int i = 0; i < kN; ++i) largest = std::max(largest, std::fabs(from[i]));
    const int exponent = largest > 0 ? std::clamp(std::ilogb(largest), -100, 100) : 0;
    unit = std::ldexp(1.0f, exponent);
    const float inverse_unit = std::ldexp(1.0f, -exponent);
    largest *= inverse_unit;
    double squares = 0;
    for (int i = 0; i < kN; ++i) {
      value[i] = from[i] * inverse_unit;
      squares += static_cast<double>(value[i]) * value[i];
    }
    const auto root = static_cast<float>(std::sqrt(squares / kN));
    for (int i = 0; i < kN; ++i) weight[i] = root + std::fabs(value[i]);
  }

  // Every F16 scale of the block would be zero.
  bool is_below_halves() const { return largest * unit < 0x1p-26f; }

  // The nearest F16 number, the largest finite one beyond the range.
  Half ToHalf(float x) const {
    constexpr float kLargestHalf = 65504;
    const F16 half = kvlathe::ToF16(std::clamp(x * unit, -kLargestHalf, kLargestHalf));
    return {half.bits, kvlathe::ToFloat(half) / unit};
  }
};

inline float Inverse(float scale) { return scale == 0 ? 0.0f : 1 / scale; }

inline Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
inline float Sum(Lanes x) { return (x[0] + x[1]) + (x[2] + x[3]); }

// Codes of n values, `line` given as the block stores it. Returns the weighed squares of errors.
template <int kMaxCode>
float EncodeOnLine(const float* values, const float* weights, int n, Line line, uint8_t* codes) {
  const float inverse = Inverse(line.scale);
  Lanes error{};
  for (int i = 0; i < n; i += kLanes) {
    const Lanes x = Load(values + i);
    const Lanes q = Rounded(Within((x - line.min) * inverse, 0, kMaxCode));
    const Lanes e = q * line.scale + line.min - x;
    error += e * e * Load(weights + i);
    const IntLanes code = __builtin_convertvector(q, IntLanes);
    for (int l = 0; l < kLanes; ++l) codes[i + l] = static_cast<uint8_t>(code[l]);
  }
  return Sum(error);
}

// The same of a grid and a scale of either sign.
template <typename Grid>
float EncodeOnGrid(const float* values, const float* weights, int n, float scale, uint8_t* codes) {
  const float inverse = Inverse(scale);
  Lanes error{};
  for (int i = 0; i < n; i += kLanes) {
    const Lanes x = Load(values + i);
    const Lanes q = Grid::Nearest(x * inverse);
    const Lanes e = q * scale - x;
    error += e * e * Load(weights + i);
    for (int l = 0; l < kLanes; ++l) codes[i + l] = static_cast<uint8_t>(Grid::CodeOf(q[l]));
  }
  return Sum(error);
}

}  // namespace kvlathe::ggml_fits
