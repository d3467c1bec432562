// Rotary position embedding tables (Su et al. 2021; HF half layout: channel i pairs with i + d/2).
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kvlathe {

// Rotation frequencies of the rope_dim / 2 pairs after scaling, radians per position.
std::vector<double> RopeFrequencies(const RopeConfig& config, int rope_dim);

// Cosines and sines by position, times the amplitude, grown as longer contexts appear. 8 bytes per
// pair and position.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int rope_dim);

  // Makes positions [0, n_positions) available.
  void Extend(int n_positions);
  const float* cos(int position) const { return cos_.data() + n_pairs_ * position; }
  const float* sin(int position) const { return sin_.data() + n_pairs_ * position; }
  int rope_dim() const { return static_cast<int>(2 * n_pairs_); }

 private:
  size_t n_pairs_;
  double amplitude_;
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // [n_positions, n_pairs]
};

}  // namespace kvlathe
