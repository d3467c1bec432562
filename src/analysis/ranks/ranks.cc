#include "analysis/ranks/ranks.h"

#include <algorithm>
#include <utility>

#include "analysis/ranks/fisher.h"
#include "base/check.h"

namespace kvlathe {
namespace {

// tail[r] = sum_{i>r} sigma_i / sum sigma_i, r in [0, head_dim]: falls from 1 to exactly 0. A pair
// of zeros loses nothing at any rank.
std::vector<double> RemovedMass(const std::vector<double>& singular_values) {
  const int n = static_cast<int>(singular_values.size());
  std::vector<double> tail(n + 1, 0.0);
  for (int r = n - 1; r >= 0; --r) tail[r] = tail[r + 1] + singular_values[r];
  const double total = tail[0];
  if (total > 0) {
    for (double& mass : tail) mass /= total;
  }
  return tail;
}

int RankBelow(int rank, int round) { return (rank - 1) / round * round; }

// The mean square of singular values [begin, end).
double MeanSquare(const std::vector<double>& singular_values, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += singular_values[i] * singular_values[i];
  return sum / (end - begin);
}

}  // namespace

RankLadder RankLadder::Adaptive(const std::vector<HeadSpectra>& spectra, int head_dim, int round) {
  std::vector<Step> steps;
  for (int h = 0; h < static_cast<int>(spectra.size()); ++h) {
    for (const bool is_key : {true, false}) {
      const std::vector<double>& singular_values = is_key ? spectra[h].qk : spectra[h].v;
      KVL_CHECK_EQ(static_cast<int>(singular_values.size()), head_dim);
      const std::vector<double> removed = RemovedMass(singular_values);
      for (int r = RankBelow(head_dim, round); r >= round; r = RankBelow(r, round)) {
        steps.push_back({removed[r], h, is_key, r});
      }
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.eta < b.eta; });
  return RankLadder(static_cast<int>(spectra.size()), head_dim, std::move(steps));
}

RankLadder RankLadder::LeastError(const std::vector<HeadSpectra>& spectra, int head_dim,
                                  int round) {
  std::vector<Step> steps;
  for (int h = 0; h < static_cast<int>(spectra.size()); ++h) {
    for (const bool is_key : {true, false}) {
      const std::vector<double>& singular_values = is_key ? spectra[h].qk : spectra[h].v;
      KVL_CHECK_EQ(static_cast<int>(singular_values.size()), head_dim);
      double loss = 0;
      for (int from = head_dim, to = RankBelow(from, round); to >= round;
           from = to, to = RankBelow(to, round)) {
        loss = std::max(loss, MeanSquare(singular_values, to, from));
        steps.push_back({loss, h, is_key, to});
      }
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.eta < b.eta; });
  return RankLadder(static_cast<int>(spectra.size()), head_dim, std::move(steps));
}

RankLadder RankLadder::Uniform(int n_heads, int head_dim, int round) {
  std::vector<Step> steps;
  double level = 0;
  for (int r = RankBelow(head_dim, round); r >= round; r = RankBelow(r, round)) {
    for (const bool is_key : {false, true}) {
      ++level;
      for (int h = 0; h < n_heads; ++h) steps.push_back({level, h, is_key, r});
    }
  }
  return RankLadder(n_heads, head_dim, std::move(steps));
}

RankLadder::RankLadder(int n_heads, int head_dim, std::vector<Step> steps)
    : n_heads_(n_heads), head_dim_(head_dim), steps_(std::move(steps)) {
  levels_.push_back({0, 0});
  std::vector<HeadRanks> ranks(n_heads, {head_dim, head_dim});
  int64_t n_removed = 0;
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    const Step& step = steps_[i];
    int& rank = step.is_key ? ranks[step.head_idx].rank_k : ranks[step.head_idx].rank_v;
    n_removed += rank - step.rank;
    rank = step.rank;
    const bool is_last_of_eta =
        i + 1 == static_cast<int>(steps_.size()) || steps_[i + 1].eta != step.eta;
    if (is_last_of_eta) levels_.push_back({i + 1, n_removed});
  }
}

RankAllocation RankLadder::AllocationAt(int level) const {
  const Level& chosen = levels_[level];
  RankAllocation allocation;
  allocation.ranks.assign(n_heads_, {head_dim_, head_dim_});
  for (int i = 0; i < chosen.n_steps; ++i) {
    HeadRanks& ranks = allocation.ranks[steps_[i].head_idx];
    (steps_[i].is_key ? ranks.rank_k : ranks.rank_v) = steps_[i].rank;
  }
  if (chosen.n_steps > 0) allocation.eta = steps_[chosen.n_steps - 1].eta;
  allocation.removal_rate = static_cast<double>(chosen.n_removed) / (2.0 * n_heads_ * head_dim_);
  return allocation;
}

int RankLadder::LastLevelWithin(double rate) const {
  // The slack only absorbs the rounding of rates such as 0.3, which double cannot hold.
  const double allowed = rate * 2.0 * n_heads_ * head_dim_ * (1 + 1e-12);
  const auto beyond = std::upper_bound(
      levels_.begin(), levels_.end(), allowed,
      [](double limit, const Level& l) { return limit < static_cast<double>(l.n_removed); });
  return static_cast<int>(beyond - levels_.begin()) - 1;
}

namespace {

template <typename Ladder>
StatusOr<RankAllocation> AllocateForRatio(const Ladder& ladder, const RankRequest& request) {
  KVL_CHECK(request.kv_fraction != nullptr);
  const auto reaches = [&](int level) {
    return request.kv_fraction(ladder.AllocationAt(level).ranks) * request.value <= 1.0;
  };
  int last = ladder.n_levels() - 1;
  if (!reaches(last)) {
    return Error(StatusCode::kInvalidArgument,
                 "ratio={}: the lowest ranks reach only {:.2f}; ask for less, or {}", request.value,
                 1.0 / request.kv_fraction(ladder.AllocationAt(last).ranks),
                 request.is_quantized ? "take a quantizer of fewer bits" : "add a quantizer");
  }
  int first = 0;
  while (first < last) {
    const int middle = first + (last - first) / 2;
    if (reaches(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return ladder.AllocationAt(last);
}

template <typename Ladder>
StatusOr<RankAllocation> Choose(const Ladder& ladder, const RankRequest& request) {
  if (request.goal == RankRequest::Goal::kRatio) return AllocateForRatio(ladder, request);
  return ladder.AllocationAt(ladder.LastLevelWithin(request.value));
}

Status CheckRequest(const RankRequest& request) {
  if (request.round < 8 || request.round % 8 != 0) {
    return Error(StatusCode::kInvalidArgument, "round={}: ranks are rounded to multiples of 8",
                 request.round);
  }
  using Goal = RankRequest::Goal;
  if (request.goal == Goal::kRate && !(request.value >= 0 && request.value < 1)) {
    return Error(StatusCode::kInvalidArgument, "rate={}: the removed share lies in [0, 1)",
                 request.value);
  }
  if (request.goal == Goal::kRatio && !(request.value >= 1 && request.value <= 1e6)) {
    return Error(StatusCode::kInvalidArgument, "ratio={}: a cache shrinks by 1 or more",
                 request.value);
  }
  return OkStatus();
}

}  // namespace

StatusOr<RankAllocation> AllocateRanks(const std::vector<HeadSpectra>& spectra, int head_dim,
                                       const RankRequest& request, RankRule rule) {
  KVL_RETURN_IF_ERROR(CheckRequest(request));
  const int n_heads = static_cast<int>(spectra.size());
  if (request.fisher != nullptr) {
    const int n_layers = static_cast<int>(request.fisher->k.size());
    KVL_CHECK_EQ(n_heads % n_layers, 0);
    return Choose(FisherLadder(request.fisher, n_heads / n_layers, head_dim, request.round),
                  request);
  }
  if (request.uniform) {
    KVL_ASSIGN_OR_RETURN(RankAllocation allocation,
                         Choose(RankLadder::Uniform(n_heads, head_dim, request.round), request));
    allocation.eta = 0;
    return allocation;
  }
  return Choose(rule == RankRule::kLeastError
                    ? RankLadder::LeastError(spectra, head_dim, request.round)
                    : RankLadder::Adaptive(spectra, head_dim, request.round),
                request);
}

}  // namespace kvlathe
