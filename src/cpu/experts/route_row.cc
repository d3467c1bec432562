#include "cpu/experts/route_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlathe {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

double KeyOf(double score) { return std::isnan(score) ? kLowest : score; }

}  // namespace

RowRouter::RowRouter(const RouteRule& rule, int n_experts, const float* choice_bias)
    : rule_(rule),
      n_experts_(n_experts),
      choice_bias_(choice_bias),
      scores_(n_experts),
      keys_(n_experts),
      is_closed_(n_experts) {}

void RowRouter::ScoreAll(const float* logits) {
  const double largest = *std::max_element(logits, logits + n_experts_);
  double sum = 0;
  for (int e = 0; e < n_experts_; ++e) {
    switch (rule_.score) {
      case RouteRule::Score::kSoftmax:
        scores_[e] = std::exp(logits[e] - largest);
        sum += scores_[e];
        break;
      case RouteRule::Score::kSigmoid:
        scores_[e] = 1 / (1 + std::exp(-static_cast<double>(logits[e])));
        break;
      case RouteRule::Score::kSoftmaxOfChosen:
      case RouteRule::Score::kSparseMixer:
        scores_[e] = logits[e];
        break;
    }
  }
  for (int e = 0; e < n_experts_; ++e) {
    if (rule_.score == RouteRule::Score::kSoftmax) scores_[e] /= sum;
    keys_[e] = KeyOf(scores_[e] + (choice_bias_ == nullptr ? 0 : choice_bias_[e]));
  }
}

int RowRouter::BestOpen(const std::vector<double>& keys) const {
  int best = -1;
  for (int e = 0; e < n_experts_; ++e) {
    if (!is_closed_[e] && (best < 0 || keys[e] > keys[best])) best = e;
  }
  return best;
}

// Only experts of the best groups stay open.
void RowRouter::CloseGroups() {
  const int size = n_experts_ / rule_.n_groups;
  std::vector<double> of_groups(rule_.n_groups);
  for (int g = 0; g < rule_.n_groups; ++g) {
    double first = kLowest, second = kLowest;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, keys_[e]));
      first = std::max(first, keys_[e]);
    }
    of_groups[g] = rule_.groups_sum_two && size > 1 ? first + second : first;
  }
  std::fill(is_closed_.begin(), is_closed_.end(), true);
  std::vector<bool> is_taken(rule_.n_groups);
  for (int i = 0; i < rule_.n_used_groups; ++i) {
    int best = -1;
    for (int g = 0; g < rule_.n_groups; ++g) {
      if (!is_taken[g] && (best < 0 || of_groups[g] > of_groups[best])) best = g;
    }
    is_taken[best] = true;
    std::fill_n(is_closed_.begin() + best * size, size, false);
  }
}

// The softmax of what is nearly as large as the best one, without those that were chosen before.
void RowRouter::MixSparsely(const float* logits, int32_t* experts, float* weights) {
  for (int i = 0; i < rule_.n_used; ++i) {
    const int best = BestOpen(keys_);
    const double largest = logits[best];
    double sum = 0;
    for (int e = 0; e < n_experts_; ++e) {
      const double factor = std::max(std::abs(static_cast<double>(logits[e])), largest);
      if (is_closed_[e] || (largest - logits[e]) / factor > 2.0 * rule_.mixer_jitter) continue;
      sum += std::exp(logits[e] - largest);
    }
    experts[i] = best;
    weights[i] = static_cast<float>(rule_.scale / sum);
    is_closed_[best] = true;
  }
}

void RowRouter::Route(const float* logits, int32_t* experts, float* weights) {
  ScoreAll(logits);
  if (rule_.n_groups > 1) {
    CloseGroups();
  } else {
    std::fill(is_closed_.begin(), is_closed_.end(), false);
  }
  if (rule_.score == RouteRule::Score::kSparseMixer) return MixSparsely(logits, experts, weights);
  double sum = 0;
  for (int i = 0; i < rule_.n_used; ++i) {
    const int best = BestOpen(keys_);
    is_closed_[best] = true;
    experts[i] = best;
    if (rule_.score == RouteRule::Score::kSoftmaxOfChosen) {
      // Choices fall, so that the first is the largest.
      scores_[best] = i == 0 ? 1 : std::exp(scores_[best] - logits[experts[0]]);
    }
    sum += scores_[best];
  }
  double factor = rule_.scale;
  if (rule_.score == RouteRule::Score::kSoftmaxOfChosen) {
    factor /= sum;
  } else if (rule_.normalises) {
    factor /= rule_.adds_min_sum ? sum + rule_.min_sum : std::max<double>(sum, rule_.min_sum);
  }
  for (int i = 0; i < rule_.n_used; ++i) {
    weights[i] = static_cast<float>(scores_[experts[i]] * factor);
  }
}

}  // namespace kvlathe
