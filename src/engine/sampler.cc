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

Status LogitsAreNotFinite() {
  return Error(StatusCode::kDataLoss, "the model computed logits that are not finite");
}

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
  if (!AreFinite(logits)) return LogitsAreNotFinite();
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

bool Sampler::TakesLikeliest(const TokenConstraint* constraint) const {
  if (adjusts_ || constraint != nullptr) return false;
  return params_.temperature == 0 || (params_.top_k > 0 && params_.top_k <= LargestPlan::kLargest);
}

StatusOr<int32_t> Sampler::SampleLikeliest(const LargestNumbers& likeliest) {
  if (!likeliest.are_finite) return LogitsAreNotFinite();
  if (params_.temperature == 0) return likeliest.numbers.front().place;
  candidates_.clear();
  for (const LargestNumbers::Number& number : likeliest.numbers) {
    if (std::ssize(candidates_) == params_.top_k) break;
    candidates_.emplace_back(number.value, number.place);
  }
  return *DrawOfOrdered({}, Random(params_.seed, n_draws_++).Uniform());
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

// Leaves the n likeliest tokens in order: larger logit first, equal ones by id, so that the draw
// does not depend on the sort. With few of many it is one pass over the logits and a heap.
void Sampler::KeepLikeliest(std::span<const float> logits, size_t n) {
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  candidates_.clear();
  if (n > logits.size() / 16) {
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + n, candidates_.end(), before);
    candidates_.resize(n);
    std::sort(candidates_.begin(), candidates_.end(), before);
    return;
  }
  for (size_t i = 0; i < n; ++i) candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
  std::make_heap(candidates_.begin(), candidates_.end(), before);  // the least likely in front
  for (size_t i = n; i < logits.size(); ++i) {
    // Ids rise, so that an equal logit comes behind those that are there.
    if (!(logits[i] > candidates_.front().first)) continue;
    std::pop_heap(candidates_.begin(), candidates_.end(), before);
    candidates_.back() = {logits[i], static_cast<int32_t>(i)};
    std::push_heap(candidates_.begin(), candidates_.end(), before);
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), before);
}

// Without top-k every token is a candidate, and yet the draw mostly falls on one of the likeliest:
// more of them are put in order until it has.
int32_t Sampler::Draw(std::span<const float> logits) {
  constexpr size_t kFirstOrdered = 256, kTimesMore = 16;
  const double uniform = Random(params_.seed, n_draws_++).Uniform();
  const size_t n_logits = logits.size();
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < n_logits) {
    KeepLikeliest(logits, static_cast<size_t>(params_.top_k));
    return *DrawOfOrdered({}, uniform);
  }
  for (size_t n = std::min(kFirstOrdered, n_logits);; n = std::min(kTimesMore * n, n_logits)) {
    KeepLikeliest(logits, n);
    const std::span<const float> all = n < n_logits ? logits : std::span<const float>();
    if (const std::optional<int32_t> token = DrawOfOrdered(all, uniform)) return *token;
  }
}

// The draw among candidates_, which are all there are, or else the likeliest of `all`. Nothing
// where the candidates end before it is decided.
std::optional<int32_t> Sampler::DrawOfOrdered(std::span<const float> all, double uniform) {
  const float max_logit = candidates_.front().first;
  const float temperature = params_.temperature;
  const auto sum_over = [&](const auto& weigh) {
    double sum = 0;
    if (all.empty()) {
      for (const auto& [logit, id] : candidates_) sum += weigh(logit);
    } else {
      for (const float logit : all) sum += weigh(logit);
    }
    return sum;
  };
  double sum = 0;
  if (params_.top_p < 1) sum = sum_over([&](float x) { return std::exp(x - max_logit); });
  // The first n_kept candidates count; min-p cuts at a logit since p / p_max is
  // exp(logit - max_logit).
  double before_it = 0;
  size_t n_kept = 0;
  bool is_cut = false;  // by top-p or min-p, or by what is masked
  for (; n_kept < candidates_.size() && !is_cut; n_kept += is_cut ? 0 : 1) {
    const float logit = candidates_[n_kept].first;
    const double weight = std::exp(logit - max_logit);
    const bool is_likely =
        (params_.top_p >= 1 || before_it < params_.top_p * sum) && weight >= params_.min_p;
    is_cut = IsMasked(logit) || (n_kept > 0 && !is_likely);
    before_it += weight;
  }
  const bool goes_on = !is_cut && !all.empty();
  if (goes_on && (params_.top_p < 1 || params_.min_p > 0)) return std::nullopt;
  const auto weigh = [&](float x) { return std::exp((x - max_logit) / temperature); };
  double kept = 0;
  if (goes_on) {
    kept = sum_over(weigh);  // of what is masked: 0
  } else {
    for (size_t i = 0; i < n_kept; ++i) kept += weigh(candidates_[i].first);
  }
  double draw = uniform * kept;
  for (size_t i = 0; i < n_kept; ++i) {
    draw -= weigh(candidates_[i].first);
    if (draw < 0) return candidates_[i].second;
  }
  if (goes_on) return std::nullopt;
  return candidates_[n_kept - 1].second;
}

}  // namespace kvlathe
