// Products of small matrices as a warp of the fibre runtime computes them together.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

namespace kvlathe::simt::host {

inline uint32_t BitsOfBf16(float x) { return ToBf16(x).bits; }
inline uint32_t BitsOfF16(float x) { return ToF16(x).bits; }
inline float FloatOfBf16Bits(uint32_t low_bits) { return std::bit_cast<float>(low_bits << 16); }
inline float FloatOfF16Bits(uint32_t low_bits) {
  return ToFloat(F16{static_cast<uint16_t>(low_bits)});
}

// What a lane brings to m16n8k16, and c comes back.
struct Operands {
  uint32_t a[4], b[2];
  float c[4];

  void Set(const uint32_t (&a_in)[4], const uint32_t (&b_in)[2], const float (&c_in)[4]) {
    std::memcpy(a, a_in, sizeof(a));
    std::memcpy(b, b_in, sizeof(b));
    std::memcpy(c, c_in, sizeof(c));
  }
  void Get(float (&c_out)[4]) const { std::memcpy(c_out, c, sizeof(c)); }
};

// `slots`: the Operands of 32 lanes, 64 bytes apart.
template <float (*kToFloat)(uint32_t low_bits)>
void MultiplyTogether(std::byte* slots) {
  float a[16][16], b[16][8];
  Operands lanes[32];
  for (int lane = 0; lane < 32; ++lane) {
    std::memcpy(&lanes[lane], slots + lane * 64, sizeof(Operands));
    const Operands& o = lanes[lane];
    const int g = lane / 4, i = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      const int shift = 16 * half;
      a[g][i + half] = kToFloat(o.a[0] >> shift & 0xffff);
      a[g + 8][i + half] = kToFloat(o.a[1] >> shift & 0xffff);
      a[g][i + 8 + half] = kToFloat(o.a[2] >> shift & 0xffff);
      a[g + 8][i + 8 + half] = kToFloat(o.a[3] >> shift & 0xffff);
      b[i + half][g] = kToFloat(o.b[0] >> shift & 0xffff);
      b[i + 8 + half][g] = kToFloat(o.b[1] >> shift & 0xffff);
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      const float x = a[row][k];
      for (int column = 0; column < 8; ++column) sums[row][column] += x * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    Operands& o = lanes[lane];
    const int g = lane / 4, i = lane % 4 * 2;
    o.c[0] += sums[g][i];
    o.c[1] += sums[g][i + 1];
    o.c[2] += sums[g + 8][i];
    o.c[3] += sums[g + 8][i + 1];
    std::memcpy(slots + lane * 64, &o, sizeof(Operands));
  }
}

}  // namespace kvlathe::simt::host
