// Scores that families cap (ScoreRule, machine/attention/head_job.h).
#pragma once

#include <cmath>

#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

// cap tanh(x / cap), to about three units in the last place of the result; cap is above 0.
KVL_DEVICE float Capped(float x, float cap) { return cap * tanhf(x / cap); }
// The same of several numbers x unit.
template <int kRows, int kColumns>
KVL_DEVICE void CapAll(float unit, float cap, float (&x)[kRows][kColumns]) {
  const float to_cap = unit / cap;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) x[i][j] = cap * tanhf(x[i][j] * to_cap);
  }
}

}  // namespace kvlathe::cuda
