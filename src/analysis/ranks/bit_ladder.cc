#include "analysis/ranks/bit_ladder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kLevels[] = {0, 1, 2, 3, 4, 5, 8};  // bits, ascending

// Of the channels of a group.
double NoiseOf(const std::vector<double>& noise, int group) {
  const auto first = noise.begin() + group * kBitGroup;
  return std::accumulate(first, first + kBitGroup, 0.0);
}

// What a group loses at each of kLevels.
using Losses = std::array<double, std::size(kLevels)>;

Losses LossesOf(const std::vector<double>& singular_values, const std::vector<double>& noise,
                int group, StoredUnit unit) {
  const int begin = group * kBitGroup, end = begin + kBitGroup;
  const double noise_sum = NoiseOf(noise, group);
  Losses losses{};
  for (int i = begin; i < end; ++i) {
    losses[0] += kCoherentFactor * singular_values[i] * singular_values[i];
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    losses[i] = noise_sum * UnitCost(kLevels[i], unit);
  }
  return losses;
}

// Saved per bit and channel on the way from one level to another.
double GainOf(const Losses& losses, size_t from, size_t to) {
  return (losses[from] - losses[to]) / (kLevels[to] - kLevels[from]) / kBitGroup;
}

// Of a bit in each head, in shares of the dearest; heads of a layer follow each other.
std::vector<double> BitCosts(const std::vector<double>& positions_held, int n_heads) {
  std::vector<double> costs(n_heads, 1.0);
  if (positions_held.empty()) return costs;
  const int n_layers = static_cast<int>(positions_held.size());
  KVL_CHECK_EQ(n_heads % n_layers, 0);
  const double most = std::ranges::max(positions_held);
  for (int h = 0; h < n_heads; ++h) {
    const double held = positions_held[h / (n_heads / n_layers)];
    KVL_CHECK(held > 0);
    costs[h] = held / most;
  }
  return costs;
}

BitSplit SplitOf(const std::vector<int>& bits_of_groups) {
  BitSplit split;
  for (const int bits : bits_of_groups) {
    if (bits == 0) continue;
    split.channels[std::ranges::find(kSplitBits, bits) - kSplitBits.begin()] += kBitGroup;
  }
  return split;
}

}  // namespace

BitLadder::BitLadder(const std::vector<HeadSpectra>& spectra, const std::vector<HeadNoise>& noise,
                     int head_dim, StoredUnit unit, const std::vector<double>& positions_held)
    : unit_(unit),
      n_heads_(static_cast<int>(spectra.size())),
      n_groups_(head_dim / kBitGroup),
      has_bits_(2 * spectra.size()) {
  KVL_CHECK_EQ(spectra.size(), noise.size());
  const std::vector<double> costs = BitCosts(positions_held, n_heads_);
  for (int h = 0; h < n_heads_; ++h) {
    AddSteps(2 * h, costs[h], spectra[h].qk, noise[h].qk);
    AddSteps(2 * h + 1, costs[h], spectra[h].v, noise[h].v);
  }
  // Stable: of equal gains the earlier group and the fewer bits come first.
  std::stable_sort(steps_.begin(), steps_.end(),
                   [](const Step& a, const Step& b) { return a.gain > b.gain; });
}

// The steps of every group along the lower convex hull of its losses.
void BitLadder::AddSteps(int pair, double bit_cost, const std::vector<double>& singular_values,
                         const std::vector<double>& noise) {
  if (singular_values.empty()) return;
  has_bits_[pair] = true;
  for (int g = 0; g < n_groups_; ++g) {
    const Losses losses = LossesOf(singular_values, noise, g, unit_);
    const auto gain = [&](size_t from, size_t to) { return GainOf(losses, from, to); };
    for (size_t at = g == 0 ? 1 : 0; at + 1 < losses.size();) {
      size_t best = at + 1;
      for (size_t to = at + 2; to < losses.size(); ++to) {
        if (gain(at, to) > gain(at, best)) best = to;
      }
      steps_.push_back({gain(at, best) / bit_cost, pair, g, kLevels[best]});
      at = best;
    }
  }
}

std::vector<std::vector<int>> BitLadder::BitsAt(int level) const {
  std::vector<int> least(n_groups_, 0);
  least[0] = 1;
  std::vector<std::vector<int>> bits(2 * n_heads_, least);  // of the pairs
  for (int pair = 0; pair < 2 * n_heads_; ++pair) bits[pair][0] = has_bits_[pair] ? 1 : 0;
  for (int i = 0; i < level; ++i) bits[steps_[i].pair][steps_[i].group] = steps_[i].bits;
  for (std::vector<int>& pair : bits) {
    for (int g = n_groups_ - 2; g >= 0; --g) pair[g] = std::max(pair[g], pair[g + 1]);
  }
  return bits;
}

EntryBits BitLadder::SplitsOf(const std::vector<std::vector<int>>& bits, int head) const {
  return {SplitOf(bits[2 * head]), SplitOf(bits[2 * head + 1])};
}

std::vector<HeadRanks> BitLadder::RanksAt(int level) const {
  const std::vector<std::vector<int>> bits = BitsAt(level);
  std::vector<HeadRanks> ranks;
  for (int h = 0; h < n_heads_; ++h) {
    const auto [k, v] = SplitsOf(bits, h);
    ranks.push_back({.rank_k = n_groups_ * kBitGroup,
                     .rank_v = n_groups_ * kBitGroup,
                     .bits = {.middle = {k, v}}});
  }
  return ranks;
}

std::vector<HeadRanks> BitLadder::RanksWithClassesAt(int level) const {
  const auto level_of = [&](double weight) {
    if (level == 0) return 0;
    const double price = steps_[level - 1].gain / weight;
    const auto end =
        std::ranges::partition_point(steps_, [&](const Step& step) { return step.gain >= price; });
    return static_cast<int>(end - steps_.begin());
  };
  const std::vector<std::vector<int>> most = BitsAt(std::max(level, level_of(kClassWeight)));
  const std::vector<std::vector<int>> least = BitsAt(std::min(level, level_of(1 / kClassWeight)));
  std::vector<HeadRanks> ranks = RanksAt(level);
  for (int h = 0; h < n_heads_; ++h) {
    ranks[h].bits.most = SplitsOf(most, h);
    ranks[h].bits.least = SplitsOf(least, h);
  }
  return ranks;
}

double BitLadder::GainAt(int level) const {
  return level < static_cast<int>(steps_.size()) ? steps_[level].gain : 0;
}

StatusOr<RankAllocation> AllocateBits(const std::vector<HeadSpectra>& spectra,
                                      const std::vector<HeadNoise>& noise, int head_dim,
                                      const RankRequest& request) {
  KVL_CHECK(request.goal == RankRequest::Goal::kRatio && request.kv_fraction != nullptr);
  if (!(request.value >= 1 && request.value <= 1e6)) {
    return Error(StatusCode::kInvalidArgument, "ratio={}: a cache shrinks by 1 or more",
                 request.value);
  }
  const BitLadder ladder(spectra, noise, head_dim, request.unit, request.positions_held);
  const auto ranks_at = [&](int level) {
    return request.has_classes ? ladder.RanksWithClassesAt(level) : ladder.RanksAt(level);
  };
  const auto fits = [&](int level) {
    return request.kv_fraction(ranks_at(level)) * request.value <= 1.0;
  };
  if (!fits(0)) {
    return Error(
        StatusCode::kInvalidArgument,
        "ratio={}: the fewest bits reach only {:.2f} at the context it holds at, open block "
        "and sinks counted; ask for less, or add a retention stage",
        request.value, 1.0 / request.kv_fraction(ranks_at(0)));
  }
  int first = 0, last = ladder.n_levels() - 1;
  while (first < last) {
    const int middle = last - (last - first) / 2;
    if (fits(middle)) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  RankAllocation allocation;
  allocation.ranks = ranks_at(first);
  allocation.eta = ladder.GainAt(first);
  int64_t n_kept = 0;
  for (const HeadRanks& r : allocation.ranks)
    n_kept += r.bits.middle.k.n_channels() + r.bits.middle.v.n_channels();
  allocation.removal_rate =
      1 - static_cast<double>(n_kept) / (2.0 * head_dim * static_cast<double>(spectra.size()));
  return allocation;
}

Status TakePressedBits(const std::vector<HeadRanks>& fewer, std::vector<HeadRanks>* ranks) {
  KVL_CHECK_EQ(fewer.size(), ranks->size());
  int64_t n_before = 0, n_after = 0;  // bits of a token
  for (size_t h = 0; h < fewer.size(); ++h) {
    const EntryBits &before = (*ranks)[h].bits.middle, &after = fewer[h].bits.middle;
    n_before += before.k.bits_per_token() + before.v.bits_per_token();
    n_after += after.k.bits_per_token() + after.v.bits_per_token();
    (*ranks)[h].bits.pressed = after;
  }
  if (n_after < n_before) return OkStatus();
  return Error(
      StatusCode::kInvalidArgument,
      "under pressure the {} bits of a sealed token would become {}, no fewer (a ratio from "
      "5 on codes its open block too); give a higher ratio, or open=8",
      n_before, n_after);
}

}  // namespace kvlathe
