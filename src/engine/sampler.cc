#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/random.h"

namespace kvlathe {
namespace {

// Far enough to ban a token or to force it; the limits of the OpenAI API.
constexpr float kMaxBias = 100;
constexpr float kMaxPenalty = 2;
constexpr float kMaxRepetitionPenalty = 100;

bool IsMasked(float logit) { return logit == -std::numeric_limits<float>::infinity(); }

Status CheckPenalty(const char* flag, float value) {
  if (std::abs(value) <= kMaxPenalty) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{} {}: give a number from -2 to 2", flag, value);
}

}  // namespace

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
  if (!(min_p >= 0 && min_p <= 1)) {
    return Error(StatusCode::kInvalidArgument, "--min-p {}: give a number from 0 (off) to 1",
                 min_p);
  }
  if (!(repetition_penalty > 0 && repetition_penalty <= kMaxRepetitionPenalty)) {
    return Error(StatusCode::kInvalidArgument,
                 "--repeat-penalty {}: give a number above 0 and at most 100; 1 is off",
                 repetition_penalty);
  }
  if (repeat_last_n < -1) {
    return Error(StatusCode::kInvalidArgument,
                 "--repeat-last-n {}: give a number of tokens, 0 (off) or -1 (all)", repeat_last_n);
  }
  KVL_RETURN_IF_ERROR(CheckPenalty("--presence-penalty", presence_penalty));
  KVL_RETURN_IF_ERROR(CheckPenalty("--frequency-penalty", frequency_penalty));
  for (const auto& [id, bias] : logit_bias) {
    if (!(std::abs(bias) <= kMaxBias)) {
      return Error(StatusCode::kInvalidArgument,
                   "--logit-bias {}={}: give a number from -100 to 100", id, bias);
    }
  }
  return OkStatus();
}

Status SamplingParams::CheckVocabulary(int vocab_size) const {
  for (const auto& [id, bias] : logit_bias) {
    if (id >= 0 && id < vocab_size) continue;
    return Error(StatusCode::kInvalidArgument, "--logit-bias {}={}: token ids go from 0 to {}", id,
                 bias, vocab_size - 1);
  }
  return OkStatus();
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt)
    : params_(std::move(params)) {
  if (params_.repetition_penalty == 1) params_.repeat_last_n = 0;
  adjusts_ = !params_.logit_bias.empty() || params_.repeat_last_n != 0 ||
             params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  EnterBefore(prompt, /*is_output=*/false);
}

void Sampler::EnterBefore(std::span<const int32_t> tokens, bool is_output) {
  if (!adjusts_) return;
  for (const int32_t token : tokens) {
    EnterWindow(token);
    if (is_output) ++in_output_[token];
  }
}

int32_t ArgMax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;  // a loop of fixed length becomes vectors
  std::array<float, kLanes> most;
  most.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      most[lane] = logits[i + lane] > most[lane] ? logits[i + lane] : most[lane];
    }
  }
  for (; i < logits.size(); ++i) most[0] = std::max(most[0], logits[i]);
  const float largest = *std::ranges::max_element(most);
  return static_cast<int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

bool AreFinite(std::span<const float> numbers) {
  // Only NaN and infinity have all bits of the exponent set: one more carries into the sign bit.
  constexpr uint32_t kExponent = 0x7f800000, kOneMore = 0x00800000;
  const auto check = [](float x) { return (std::bit_cast<uint32_t>(x) & kExponent) + kOneMore; };
  constexpr size_t kLanes = 16;  // a loop of fixed length becomes vectors
  std::array<uint32_t, kLanes> found = {};
  size_t i = 0;
  for (; i + kLanes <= numbers.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) found[lane] |= check(numbers[i + lane]);
  }
  for (; i < numbers.size(); ++i) found[0] |= check(numbers[i]);
  return std::ranges::none_of(found, [](uint32_t bits) { return bits >> 31 != 0; });
}

StatusOr<int32_t> Sampler::Sample(std::span<const float> logits, TokenConstraint* constraint) {
  if (!AreFinite(logits)) {
    return Error(StatusCode::kDataLoss, "the model computed logits that are not finite");
  }
  if (adjusts_ || constraint != nullptr) logits = Adjusted(logits, constraint);
  if (constraint != nullptr && std::ranges::all_of(logits, IsMasked)) {
    return Error(StatusCode::kInternal, "the constraint lets no token pass");
  }
  const int32_t token = params_.temperature == 0 ? ArgMax(logits) : Draw(logits);
  if (adjusts_) {
    EnterWindow(token);
    ++in_output_[token];
  }
  return token;
}

// With repeat_last_n = -1 nothing leaves the window, so counts are all that is kept of it.
void Sampler::EnterWindow(int32_t token) {
  if (params_.repeat_last_n == 0) return;
  ++in_window_[token];
  if (params_.repeat_last_n < 0) return;
  if (window_.size() < static_cast<size_t>(params_.repeat_last_n)) {
    window_.push_back(token);
    return;
  }
  const auto leaving = in_window_.find(std::exchange(window_[oldest_], token));
  if (--leaving->second == 0) in_window_.erase(leaving);
  oldest_ = (oldest_ + 1) % window_.size();
}

// What is masked stays so: biases and penalties are finite.
std::span<const float> Sampler::Adjusted(std::span<const float> logits,
                                         TokenConstraint* constraint) {
  adjusted_.assign(logits.begin(), logits.end());
  if (constraint != nullptr) constraint->Mask(adjusted_);
  for (const auto& [id, bias] : params_.logit_bias) adjusted_[id] += bias;
  for (const auto& [id, count] : in_window_) {
    float& logit = adjusted_[id];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const auto& [id, count] : in_output_) {
    adjusted_[id] -=
        params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
  return adjusted_;
}

// Leaves the candidates of top-k in order: larger logit first, equal ones by id, so that the draw
// does not depend on the sort.
void Sampler::KeepLikeliest(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const size_t top_k = static_cast<size_t>(params_.top_k);
  if (top_k > 0 && top_k < candidates_.size()) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + top_k, candidates_.end(), before);
    candidates_.resize(top_k);
  } else {
    std::sort(candidates_.begin(), candidates_.end(), before);
  }
}

int32_t Sampler::Draw(std::span<const float> logits) {
  KeepLikeliest(logits);
  const float max_logit = candidates_.front().first;
  double sum = 0;
  if (params_.top_p < 1) {
    for (const auto& [logit, id] : candidates_) sum += std::exp(logit - max_logit);
  }
  // From here on the first n_kept candidates count; min-p cuts at a logit since p / p_max is
  // exp(logit - max_logit).
  double before_it = 0;
  size_t n_kept = 0;
  while (n_kept < candidates_.size() && !IsMasked(candidates_[n_kept].first)) {
    const double weight = std::exp(candidates_[n_kept].first - max_logit);
    const bool is_likely =
        (params_.top_p >= 1 || before_it < params_.top_p * sum) && weight >= params_.min_p;
    if (n_kept > 0 && !is_likely) break;
    before_it += weight;
    ++n_kept;
  }
  double kept = 0;
  for (size_t i = 0; i < n_kept; ++i) {
    float& weight = candidates_[i].first;
    weight = std::exp((weight - max_logit) / params_.temperature);
    kept += weight;
  }
  double draw = Random(params_.seed, n_draws_++).Uniform() * kept;
  for (size_t i = 0; i < n_kept; ++i) {
    draw -= candidates_[i].first;
    if (draw < 0) return candidates_[i].second;
  }
  return candidates_[n_kept - 1].second;
}

}  // namespace kvlathe
