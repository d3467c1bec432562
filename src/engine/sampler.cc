#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

Status SamplingParams::Check() const {
  if (!(temperature >= 0 && temperature <= 100)) {
    return Error(StatusCode::kInvalidArgument, "--temp {}: give a number from 0 (greedy) to 100",
                 temperature);
  }
  if (top_k < 0)
    return Error(StatusCode::kInvalidArgument, "--top-k {}: give 0 (off) or more", top_k);
  if (!(top_p > 0 && top_p <= 1)) {
    return Error(StatusCode::kInvalidArgument, "--top-p {}: give a number above 0 and at most 1",
                 top_p);
  }
  return OkStatus();
}

Sampler::Sampler(const SamplingParams& params) : params_(params), random_(params.seed) {}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t Sampler::Sample(std::span<const float> logits) {
  if (params_.temperature == 0) return ArgMax(logits);
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  // Larger logit first; equal ones by id, so that the draw does not depend on the sort.
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(),
                      before);
    candidates_.resize(params_.top_k);
  } else {
    std::sort(candidates_.begin(), candidates_.end(), before);
  }
  const float max_logit = candidates_.front().first;
  double sum = 0;
  for (auto& [weight, id] : candidates_) {
    weight = std::exp((weight - max_logit) / params_.temperature);
    sum += weight;
  }
  double kept = 0;
  size_t n_kept = 0;
  while (n_kept < candidates_.size() && (n_kept == 0 || kept < params_.top_p * sum)) {
    kept += candidates_[n_kept++].first;
  }
  double draw = random_.Uniform() * kept;
  for (size_t i = 0; i < n_kept; ++i) {
    draw -= candidates_[i].first;
    if (draw < 0) return candidates_[i].second;
  }
  return candidates_[n_kept - 1].second;
}

}  // namespace kvlathe
