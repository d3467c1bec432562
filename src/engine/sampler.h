// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace kvlathe {

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: all tokens
  float top_p = 1;        // nucleus: the smallest set of tokens with at least this probability
  uint64_t seed = 0;

  // kInvalidArgument with the flag and what it may be.
  Status Check() const;
};

// The order is temperature, top-k, top-p, draw. A sampler of the same seed draws the same tokens
// from the same logits, whatever else runs beside it.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  int32_t Sample(std::span<const float> logits);

 private:
  SamplingParams params_;
  Random random_;
  std::vector<std::pair<float, int32_t>> candidates_;
};

// The first index of the largest logit.
int32_t ArgMax(std::span<const float> logits);

}  // namespace kvlathe
