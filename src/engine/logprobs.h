// An answer shows log-probabilities, which are made of logits here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlathe {

inline constexpr int kMaxTopLogprobs = 20;  // as the OpenAI API

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm
};

struct TokenLogprobs {
  TokenLogprob chosen;
  int chosen_rank = 1;            // among all tokens, as `top` orders them
  std::vector<TokenLogprob> top;  // the likeliest, falling; equal ones by their ids
};

// The log-softmax of finite logits, [vocab_size], at `chosen` and at the n_top largest of them (all
// where there are fewer). The sum is taken in double, in the order of the ids.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int n_top);

}  // namespace kvlathe
