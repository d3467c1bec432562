#include "calibration/gradients/route_gradient.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlathe {
namespace {

using Score = ExpertsConfig::Score;

// exp(logit) over the sum of those that are in it.
std::vector<double> SoftmaxOf(std::span<const float> logits, const std::vector<bool>& is_in) {
  double most = -HUGE_VAL, sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (is_in[e]) most = std::max<double>(most, logits[e]);
  }
  std::vector<double> p(logits.size());
  for (size_t e = 0; e < logits.size(); ++e) {
    if (is_in[e]) sum += p[e] = std::exp(logits[e] - most);
  }
  for (double& x : p) x /= sum;
  return p;
}

// From the gradient with respect to a softmax.
void SoftmaxBack(const std::vector<double>& p, const std::vector<double>& d_p,
                 std::span<float> d_logits) {
  double common = 0;
  for (size_t e = 0; e < p.size(); ++e) common += p[e] * d_p[e];
  for (size_t e = 0; e < p.size(); ++e) {
    d_logits[e] += static_cast<float>(p[e] * (d_p[e] - common));
  }
}

// With respect to the scores of the chosen ones, which weights are made of.
std::vector<double> WeightsBack(const ExpertsConfig& c, const std::vector<double>& scores,
                                std::span<const double> d_weights) {
  double sum = 0, along = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    sum += scores[i];
    along += scores[i] * d_weights[i];
  }
  const bool has_floor = !c.adds_min_sum && sum <= c.min_sum;
  const double divisor = c.adds_min_sum ? sum + c.min_sum : std::max<double>(sum, c.min_sum);
  std::vector<double> d_scores;
  for (const double d : d_weights) {
    const double through_sum = has_floor ? 0 : along / divisor;
    d_scores.push_back(c.scale * (c.normalises ? (d - through_sum) / divisor : d));
  }
  return d_scores;
}

// One expert after the other, each the largest of a softmax over those that are nearly as large and
// were not chosen before.
void MixerBack(const ExpertsConfig& c, std::span<const float> logits,
               std::span<const int32_t> experts, std::span<const double> d_weights,
               std::span<float> d_logits) {
  std::vector<bool> is_taken(logits.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    const double largest = logits[experts[i]];
    std::vector<bool> is_in(logits.size());
    for (size_t e = 0; e < logits.size(); ++e) {
      const double factor = std::max(std::abs(double{logits[e]}), largest);
      is_in[e] = !is_taken[e] && (largest - logits[e]) / factor <= 2.0 * c.mixer_jitter;
    }
    std::vector<double> d_p(logits.size());
    d_p[experts[i]] = c.scale * d_weights[i];
    SoftmaxBack(SoftmaxOf(logits, is_in), d_p, d_logits);
    is_taken[experts[i]] = true;
  }
}

}  // namespace

void RouteBack(const ExpertsConfig& c, std::span<const float> logits,
               std::span<const int32_t> experts, std::span<const double> d_weights,
               std::span<float> d_logits) {
  if (c.score == Score::kSparseMixer) return MixerBack(c, logits, experts, d_weights, d_logits);
  const bool is_of_chosen = c.score == Score::kSoftmaxOfChosen;
  std::vector<bool> is_in(logits.size(), !is_of_chosen);
  for (const int32_t e : experts) is_in[e] = true;
  if (c.score == Score::kSigmoid) {
    std::vector<double> scores;
    for (const int32_t e : experts) scores.push_back(1 / (1 + std::exp(-double{logits[e]})));
    const std::vector<double> d_scores = WeightsBack(c, scores, d_weights);
    for (size_t i = 0; i < experts.size(); ++i) {
      d_logits[experts[i]] += static_cast<float>(d_scores[i] * scores[i] * (1 - scores[i]));
    }
    return;
  }
  const std::vector<double> p = SoftmaxOf(logits, is_in);
  std::vector<double> scores, d_p(logits.size());
  for (const int32_t e : experts) scores.push_back(p[e]);
  const std::vector<double> d_scores = WeightsBack(c, scores, d_weights);
  for (size_t i = 0; i < experts.size(); ++i) {
    d_p[experts[i]] = is_of_chosen ? c.scale * d_weights[i] : d_scores[i];
  }
  SoftmaxBack(p, d_p, d_logits);
}

}  // namespace kvlathe
