// Chooses the stored ranks from singular values, for all layers, heads and pairs together: by one
// removal rate (ZACK eq. 6, FDC eq. 1; docs/basis.md), or so that the error is least.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "format/split_bits/bit_split.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

struct FisherWeights;

struct HeadRanks {
  int rank_k = 0;
  int rank_v = 0;
  HeadBits bits = {};  // if channels have bits of their own
  bool operator==(const HeadRanks&) const = default;
};

// Channels of a row that the cache stores behind the sinks, where bits differ once it is sealed.
constexpr int StoredKeyChannels(const HeadRanks& ranks) {
  return ranks.bits.middle.k == BitSplit{} ? ranks.rank_k : ranks.bits.middle.k.n_channels();
}
constexpr int StoredValueChannels(const HeadRanks& ranks) {
  return ranks.bits.middle == EntryBits{} ? ranks.rank_v : ranks.bits.middle.v.n_channels();
}

// The singular values of the two pairs of a KV head, in descending order, [head_dim] each.
struct HeadSpectra {
  std::vector<double> qk;
  std::vector<double> v;
};

// What an error costs in each stored channel of a pair, mixed as CutBasis
// (analysis/bases/basis_methods.h) does, [head_dim]: an error of the channel's own variance that is
// independent at every position.
struct HeadNoise {
  std::vector<double> qk;
  std::vector<double> v;
};

struct RankRequest {
  enum class Goal {
    kRate,   // removes the largest achievable share of elements that is <= value, in [0, 1)
    kRatio,  // removes the least with which 1 / kv_fraction >= value, value >= 1
  };
  Goal goal = Goal::kRate;
  double value = 0;
  bool uniform = false;  // one rank pair for all layers and heads (ZACK's and FDC's ablation /AC)
  bool is_quantized = false;             // what ranks leave is stored in fewer bits
  bool has_classes = false;              // bits are chosen for classes of entries (EntryClass)
  StoredUnit unit = StoredUnit::kToken;  // of the codes that bits are chosen for
  // If not null, ranks follow these weights (analysis/ranks/fisher.h) in place of the spectra
  // (palu).
  const FisherWeights* fisher = nullptr;
  int round = 16;  // ranks are rounded to multiples of it; it is a multiple of 8
  // Bits: of how many positions each layer holds codes at the context that kv_fraction counts,
  // [n_layers]; empty: all layers of as many.
  std::vector<double> positions_held = {};
  // Returns kv_fraction of the whole cache at the model's full context, with everything counted. It
  // must not grow when a rank falls. Only kRatio needs it.
  std::function<double(const std::vector<HeadRanks>&)> kv_fraction;
};

// How ranks are chosen when they are not uniform.
enum class RankRule {
  kRemovedMass,  // each pair may lose the share eta of the sum of its singular values
  kLeastError,   // the sum of removed squared singular values over all pairs is least
};

struct RankAllocation {
  std::vector<HeadRanks> ranks;  // [n_layers * n_kv_heads]
  double removal_rate = 0;       // achieved: 1 - sum(rank_k + rank_v) / sum(2 head_dim)
  // The share of singular mass that each pair may lose; with kLeastError the squares lost per
  // element of the last step; 0 if ranks are uniform or follow Fisher weights.
  double eta = 0;
};

// All allocations that a growing eta passes through, beginning with full rank.
//
// A pair's rank is the smallest r with sum_{i>r} sigma_i <= eta * sum sigma_i, rounded up to a
// multiple of `round` and clamped to [min(round, head_dim), head_dim]. It can change only where eta
// meets the removed mass at a multiple of `round`, so the sorted list of those points holds all
// allocations, and choosing among them is exact. Points of equal eta act together.
class RankLadder {
 public:
  static RankLadder Adaptive(const std::vector<HeadSpectra>& spectra, int head_dim, int round);
  // Water-filling: the pair falls next whose next step loses the fewest squares per element.
  // Where singular values descend no step costs less than the one before it in its pair, and every
  // level is the least error that its number of elements allows. A later step that would cost less
  // counts like the one before it.
  static RankLadder LeastError(const std::vector<HeadSpectra>& spectra, int head_dim, int round);
  // All heads have the same two ranks; rank_k + rank_v falls by `round` at each level, and keys
  // keep the larger half.
  static RankLadder Uniform(int n_heads, int head_dim, int round);

  // Level 0 is full rank; removal grows strictly with the level.
  int n_levels() const { return static_cast<int>(levels_.size()); }
  RankAllocation AllocationAt(int level) const;
  // The last level that removes at most `rate` of all elements.
  int LastLevelWithin(double rate) const;

 private:
  struct Step {  // one pair of one head falls to `rank`
    double eta;
    int head_idx;
    bool is_key;
    int rank;
  };
  struct Level {
    int n_steps;  // of steps_, from the first
    int64_t n_removed;
  };
  RankLadder(int n_heads, int head_dim, std::vector<Step> steps);

  int n_heads_;
  int head_dim_;
  std::vector<Step> steps_;  // by eta; within a pair by falling rank
  std::vector<Level> levels_;
};

// kInvalidArgument: a value out of range, a round that is no multiple of 8, or a ratio that the
// lowest ranks do not reach (the message says what they do).
StatusOr<RankAllocation> AllocateRanks(const std::vector<HeadSpectra>& spectra, int head_dim,
                                       const RankRequest& request,
                                       RankRule rule = RankRule::kRemovedMass);

}  // namespace kvlathe
