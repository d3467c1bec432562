// Numbers that families cap: scores (ScoreRule, machine/attention/head_job.h) and logits.
#pragma once

#include <cmath>

#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

// x becomes most tanh(x / most), to about three units in the last place; `most` is above 0.
class TanhCap {
 public:
  KVL_DEVICE explicit TanhCap(float most) : most_(most), inverse_(1.0f / most) {}
  KVL_DEVICE float Of(float x) const { return most_ * tanhf(x * inverse_); }

 private:
  float most_, inverse_;
};

}  // namespace kvlathe::cuda
