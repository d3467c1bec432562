#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

// Whether a comes before b: larger first, equal ones by id.
bool IsLikelier(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
}

// The n_top largest logits, the largest first.
std::vector<TokenLogprob> LargestLogits(std::span<const float> logits, size_t n_top) {
  std::vector<TokenLogprob> largest;  // a heap, the least likely of them in front
  largest.reserve(n_top);
  for (size_t i = 0; i < logits.size() && n_top > 0; ++i) {
    const bool is_full = largest.size() == n_top;
    // Ids rise, so that an equal logit comes behind those that are there.
    if (is_full && logits[i] <= largest.front().logprob) continue;
    if (is_full) {
      std::pop_heap(largest.begin(), largest.end(), IsLikelier);
      largest.pop_back();
    }
    largest.push_back({static_cast<int32_t>(i), logits[i]});
    std::push_heap(largest.begin(), largest.end(), IsLikelier);
  }
  std::sort_heap(largest.begin(), largest.end(), IsLikelier);
  return largest;
}

}  // namespace

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int n_top) {
  const float max_logit = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max_logit);
  const double log_sum = max_logit + std::log(sum);
  const auto logprob_of = [&](double logit) { return static_cast<float>(logit - log_sum); };
  int rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    rank += IsLikelier({static_cast<int32_t>(i), logits[i]}, {chosen, logits[chosen]});
  }
  TokenLogprobs logprobs = {.chosen = {chosen, logprob_of(logits[chosen])},
                            .chosen_rank = rank,
                            .top = LargestLogits(logits, static_cast<size_t>(n_top))};
  for (TokenLogprob& token : logprobs.top) token.logprob = logprob_of(token.logprob);
  return logprobs;
}

}  // namespace kvlathe
