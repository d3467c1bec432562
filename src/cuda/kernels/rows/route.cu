#include <algorithm>
#include <cmath>

#include "cuda/kernels/rows/route.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kRouteThreads = 128;
constexpr int kRouteWarps = kRouteThreads / kWarp;

KVL_DEVICE double ShuffleXorDouble(double x, int mask) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const uint32_t low = ShuffleXor(static_cast<uint32_t>(bits), mask);
  const uint32_t high = ShuffleXor(static_cast<uint32_t>(bits >> 32), mask);
  return std::bit_cast<double>(uint64_t{high} << 32 | low);
}
KVL_DEVICE double SumOfWarpDouble(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += ShuffleXorDouble(x, step);
  return x;
}

// What is no number is chosen last.
KVL_DEVICE double KeyOf(double score) { return score == score ? score : -HUGE_VAL; }

// A warp chooses the experts of a row. What lies in shared memory at place i belongs to lane i %
// 32, which alone writes it.
class RowChoice {
 public:
  // Doubles of shared memory for a row.
  KVL_DEVICE static constexpr int SharedDoubles(int n_experts, const RouteNumbers& rule) {
    return 2 * n_experts + rule.n_groups + rule.n_used;
  }

  KVL_DEVICE RowChoice(const RouteParams& params, int row, double* shared)
      : p_(params),
        logits_(params.logits + int64_t{row} * params.n_logits),
        experts_(params.experts + int64_t{row} * params.rule.n_used),
        weights_(params.weights + int64_t{row} * params.rule.n_used),
        scores_(shared),
        keys_(scores_ + params.n_experts),
        groups_(keys_ + params.n_experts),
        chosen_(groups_ + params.rule.n_groups) {}

  KVL_DEVICE void Run() {
    ScoreAll();
    SyncWarp();
    if (p_.rule.n_groups > 1) CloseGroups();
    if (p_.rule.score == RouteScore::kSparseMixer) return MixSparsely();
    Choose();
  }

 private:
  // A place that may not be chosen, any more.
  static constexpr double kClosed = __builtin_nan("");

  KVL_DEVICE static bool IsOpen(double key) { return key == key; }
  KVL_DEVICE static bool IsOwn(int place) { return place % kWarp == Lane(); }

  KVL_DEVICE void ScoreAll() const {
    const int n = p_.n_experts;
    const bool is_softmax = p_.rule.score == RouteScore::kSoftmax;
    float most = -INFINITY;
    for (int e = Lane(); e < n; e += kWarp) most = logits_[e] > most ? logits_[e] : most;
    const double largest = MaxOfWarp(most);
    double sum = 0;
    for (int e = Lane(); e < n; e += kWarp) {
      const double logit = logits_[e];
      if (is_softmax) {
        scores_[e] = exp(logit - largest);
        sum += scores_[e];
      } else if (p_.rule.score == RouteScore::kSigmoid) {
        scores_[e] = 1 / (1 + exp(-logit));
      } else {
        scores_[e] = logit;
      }
    }
    sum = is_softmax ? SumOfWarpDouble(sum) : 1;
    for (int e = Lane(); e < n; e += kWarp) {
      scores_[e] /= sum;
      keys_[e] = KeyOf(scores_[e] + (p_.choice_bias == nullptr ? 0 : p_.choice_bias[e]));
    }
  }

  // The open place with the largest key, the lower of two equal ones. There is one.
  KVL_DEVICE static int BestOpen(const double* keys, int n) {
    double key = 0;
    int best = -1;
    for (int i = Lane(); i < n; i += kWarp) {
      if (IsOpen(keys[i]) && (best < 0 || keys[i] > key)) {
        key = keys[i];
        best = i;
      }
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const double other_key = ShuffleXorDouble(key, step);
      const int other = ShuffleXor(best, step);
      const bool is_better = best < 0 || other_key > key || (other_key == key && other < best);
      if (other >= 0 && is_better) {
        key = other_key;
        best = other;
      }
    }
    return best < 0 ? 0 : best;
  }

  // Only experts of the best groups stay open.
  KVL_DEVICE void CloseGroups() const {
    const int size = p_.n_experts / p_.rule.n_groups;
    for (int g = Lane(); g < p_.rule.n_groups; g += kWarp) {
      double first = -HUGE_VAL, second = -HUGE_VAL;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        const double key = keys_[e], lower = key < first ? key : first;
        second = lower > second ? lower : second;
        first = key > first ? key : first;
      }
      groups_[g] = KeyOf(p_.rule.groups_sum_two && size > 1 ? first + second : first);
    }
    SyncWarp();
    for (int i = 0; i < p_.rule.n_used_groups; ++i) {
      const int best = BestOpen(groups_, p_.rule.n_groups);
      if (IsOwn(best)) groups_[best] = kClosed;  // it is taken
    }
    SyncWarp();
    for (int e = Lane(); e < p_.n_experts; e += kWarp) {
      if (IsOpen(groups_[e / size])) keys_[e] = kClosed;
    }
  }

  // The softmax of what is nearly as large as the best one, without those that were chosen before.
  KVL_DEVICE void MixSparsely() const {
    for (int i = 0; i < p_.rule.n_used; ++i) {
      const int best = BestOpen(keys_, p_.n_experts);
      const double largest = logits_[best];
      double sum = 0;
      for (int e = Lane(); e < p_.n_experts; e += kWarp) {
        const double logit = logits_[e], size = logit < 0 ? -logit : logit;
        const double factor = size > largest ? size : largest;
        const bool is_far = (largest - logit) / factor > 2.0 * p_.rule.mixer_jitter;
        if (IsOpen(keys_[e]) && !is_far) sum += exp(logit - largest);
      }
      sum = SumOfWarpDouble(sum);
      if (Lane() == 0) {
        experts_[i] = best;
        weights_[i] = static_cast<float>(p_.rule.scale / sum);
      }
      if (IsOwn(best)) keys_[best] = kClosed;
    }
  }

  KVL_DEVICE void Choose() const {
    const RouteNumbers& rule = p_.rule;
    const bool is_of_chosen = rule.score == RouteScore::kSoftmaxOfChosen;
    double sum = 0, first_logit = 0;
    for (int i = 0; i < rule.n_used; ++i) {
      const int best = BestOpen(keys_, p_.n_experts);
      double score = scores_[best];
      if (is_of_chosen) {
        // Choices fall, so that the first is the largest.
        if (i == 0) first_logit = logits_[best];
        score = exp(score - first_logit);
      }
      sum += score;
      if (IsOwn(i)) {
        chosen_[i] = score;
        experts_[i] = best;
      }
      if (IsOwn(best)) keys_[best] = kClosed;
    }
    double factor = rule.scale;
    if (is_of_chosen) {
      factor /= sum;
    } else if (rule.normalises) {
      const double least = rule.min_sum;
      factor /= rule.adds_min_sum ? sum + least : sum > least ? sum : least;
    }
    for (int i = Lane(); i < rule.n_used; i += kWarp) {
      weights_[i] = static_cast<float>(chosen_[i] * factor);
    }
  }

  const RouteParams& p_;
  const float* logits_;
  int32_t* experts_;
  float* weights_;
  double *scores_, *keys_;  // [n_experts]; keys choose
  double* groups_;          // [n_groups]
  double* chosen_;          // [n_used]
};

KVL_KERNEL(kRouteThreads) RouteKernel(KVL_PARAMS(RouteParams) p) {
  const int row = BlockIdx() * kRouteWarps + WarpIdx();
  if (row >= p.n_rows) return;
  auto* const shared = reinterpret_cast<double*>(Shared());
  RowChoice(p, row, shared + WarpIdx() * RowChoice::SharedDoubles(p.n_experts, p.rule)).Run();
  if (p.gates == nullptr || Lane() != 0) return;
  p.gates[row] = 1 / (1 + expf(-p.logits[int64_t{row} * p.n_logits + p.n_experts]));
}

}  // namespace

void Route(cudaStream_t stream, const RouteParams& params) {
  const int64_t n_doubles = kRouteWarps * RowChoice::SharedDoubles(params.n_experts, params.rule);
  Launch(stream, RouteKernel,
         {.n_blocks = (params.n_rows + kRouteWarps - 1) / kRouteWarps,
          .n_threads = kRouteThreads,
          .shared_bytes = n_doubles * int64_t{sizeof(double)}},
         params);
}

}  // namespace kvlathe::cuda
