// A BitLadder shares out bits to groups of channels over all layers, heads and pairs together, by
// loss per bit.
#pragma once

#include <vector>

#include "analysis/ranks/ranks.h"

namespace kvlathe {

// How many channels have their bits chosen together; the layout of blocks asks for multiples of 16.
inline constexpr int kBitGroup = 16;

// How much more an error of the most attended quarter of the entries of a prompt costs than one of
// the middle half, and one of that than one of the least attended quarter. With keys
// before RoPE on SmolLM2-135M, 4 loses less than 16 at the same bytes (WikiText-2).
inline constexpr double kClassWeight = 4;

// All allocations from the smallest (one bit for the first group of every pair) to 8 bits for all,
// in steps of one group; the steps that save most loss per bit come first. A bit of a layer that
// holds few positions, because of its sliding window, costs as much less. A group without bits
// loses kCoherentFactor times the squares of its singular values, one with bits
// UnitCost(bits, unit) of its noise. Rows have all channels until they are sealed; bits that
// save less per bit than more bits do are passed over. Bits never rise along the channels of a
// pair: a group has at least those of the groups behind it. A pair without singular values has no
// bits.
class BitLadder {
 public:
  BitLadder(const std::vector<HeadSpectra>& spectra, const std::vector<HeadNoise>& noise,
            int head_dim, StoredUnit unit = StoredUnit::kChannel,
            const std::vector<double>& positions_held = {});

  int n_levels() const { return static_cast<int>(steps_.size()) + 1; }
  std::vector<HeadRanks> RanksAt(int level) const;
  // The same with classes of entries (EntryClass). Errors of the most attended entries cost
  // kClassWeight times as much as those of the middle, those of the least attended as much less; so
  // each class is at the level whose last step saves what the middle's does at that weight.
  std::vector<HeadRanks> RanksWithClassesAt(int level) const;
  // The loss that the next step saves per bit and channel, and where positions are given per share
  // of the most of them; 0 at the last level.
  double GainAt(int level) const;

 private:
  struct Step {
    double gain;
    int pair;  // 2 * head, + 1 for values
    int group;
    int bits;  // after it
  };
  // Bits of the pairs, [2 * n_heads][n_groups].
  std::vector<std::vector<int>> BitsAt(int level) const;
  EntryBits SplitsOf(const std::vector<std::vector<int>>& bits, int head) const;
  // bit_cost: of a bit of a channel.
  void AddSteps(int pair, double bit_cost, const std::vector<double>& singular_values,
                const std::vector<double>& noise);

  StoredUnit unit_;
  int n_heads_, n_groups_;
  std::vector<bool> has_bits_;  // of the pairs
  std::vector<Step> steps_;
};

// Returns the last level whose kv_fraction is at most 1 / value. kInvalidArgument for a ratio below
// 1, or one that the first level does not reach (the message says what it reaches).
StatusOr<RankAllocation> AllocateBits(const std::vector<HeadSpectra>& spectra,
                                      const std::vector<HeadNoise>& noise, int head_dim,
                                      const RankRequest& request);

// Takes the bits of `fewer`, which are of the same spectra, as those of EntryClass::kPressed.
// kInvalidArgument where they are no fewer.
Status TakePressedBits(const std::vector<HeadRanks>& fewer, std::vector<HeadRanks>* ranks);

}  // namespace kvlathe
