// MXFP4 is an Open Compute format: "OCP Microscaling Formats (MX) Specification", version 1.0,
// 2023, sections 5.2 and 6.3 (table 1: MXFP4 is blocks of 32 elements E2M1 under a scale E8M0).
//
//   code      | sign | exponent, 2 bits | mantissa, 1 bit |     bits 3, 2-1, 0
//   scale     2^(byte - 127), of 32 channels of a token: 4 + 8 / 32 = 4.25 bits a value
//
// An element is (-1)^sign * 2^(exponent - 1) * (1 + mantissa / 2), and where the exponent is 0
// (-1)^sign * mantissa / 2: 0, 0.5, 1, 1.5, 2, 3, 4 and 6. The scale of a block is
// 2^(floor(log2(max |x|)) - 2), 2 being the exponent of 6; elements are rounded to nearest, ties to
// the even mantissa, and saturate at 6.
#pragma once

#include "format/table_codes/code_table.h"

namespace kvlathe {

inline constexpr int kMxGroup = 32;

// What each code stands for, as a number of halves.
constexpr std::array<int8_t, kTableCodes> E2m1Halves() {
  std::array<int8_t, kTableCodes> halves{};
  for (int code = 0; code < kTableCodes; ++code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const int magnitude = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
    halves[code] = static_cast<int8_t>(code < 8 ? magnitude : -magnitude);
  }
  return halves;
}

inline constexpr NamedTable kMxfp4(E2m1Halves(), 0.5f);
static_assert(kMxfp4.numbers[7] == 12 && kMxfp4.steps.max_exponent == 2);

}  // namespace kvlathe
