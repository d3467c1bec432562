// The angles by which the means that keys have lost in frames add to scores (format/keys.h).
//
// A mean adds to the score of position j a cosine and a sine of j for each pair of channels. Around
// the middle of a block, which lies between tokens 31 and 32, cosines are even and sines odd: the
// tokens 32 + d and 31 - d, which lie d + 1/2 positions from it, take the sum and the difference of
// what both say of d. So one table for half a block serves all blocks, with weights of the queries
// that are turned to the middle of each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/rows/block_layout.h"

namespace kvlathe {

inline constexpr int kHalfBlock = kBlockSize / 2;

// A table that MakeMeanAngles has made, with the amplitude of the rotation in its first two parts.
struct MeanAngles {
  const float* cos = nullptr;  // [n_pairs][kHalfBlock]: of d + 1/2 positions
  const float* sin = nullptr;
  // [n_pairs]: from the first token of a block to its middle, without the amplitude.
  const float* middle_cos = nullptr;
  const float* middle_sin = nullptr;
  // [n_pairs]: from a block to the next one, likewise.
  const float* step_cos = nullptr;
  const float* step_sin = nullptr;
  int n_pairs = 0;

  MeanAngles() = default;
  MeanAngles(const float* table, int n)
      : cos(table),
        sin(cos + int64_t{n} * kHalfBlock),
        middle_cos(sin + int64_t{n} * kHalfBlock),
        middle_sin(middle_cos + n),
        step_cos(middle_sin + n),
        step_sin(step_cos + n),
        n_pairs(n) {}
};

// Of pairs with these frequencies, in radians per position.
std::vector<float> MakeMeanAngles(std::span<const double> frequencies, double amplitude);

}  // namespace kvlathe
