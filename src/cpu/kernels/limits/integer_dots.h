// The highest rate of dots of bytes that the instruction set of the file has: chains in registers,
// without memory. Included by the files of limits/ that have instruction set flags.
#pragma once

#include <cstdint>

#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// Runs n steps and returns something of their result; a step is kDotsOfStep multiplications.
constexpr int kDotChains = 8;
constexpr int kDotsOfStep = kDotChains * kLanes * 4;

inline int64_t RunIntegerDots(int64_t n) {
  IntVec sums[kDotChains];
  IntVec codes = SetWords(0x0101), row = SetWords(0x0201);
  for (IntVec& sum : sums) sum = SetWords(1);
  for (int64_t i = 0; i < n; ++i) {
    asm("" : "+v"(codes), "+v"(row));  // not the same product in every step
#pragma GCC unroll 8
    for (IntVec& sum : sums) {
#ifdef __AVX512VNNI__
      sum = _mm512_dpbusd_epi32(sum, codes, row);
#else
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, row));
#endif
    }
  }
  IntVec total = sums[0];
  for (const IntVec& sum : sums) total = total ^ sum;
  return total[0];
}

}  // namespace
}  // namespace kvlathe
