// Rotary position embedding reads these tables (Su et al. 2021; HF half layout: channel i pairs
// with i + d/2).
#pragma once

#include <cstdint>
#include <vector>

#include "format/codebook/codebook.h"
#include "model/config.h"

namespace kvlathe {

// Returns the rotation frequencies of the rope_dim / 2 pairs after scaling, in radians per
// position.
std::vector<double> RopeFrequencies(const RopeConfig& config, int rope_dim);

// Cosines and sines by position, times the amplitude. The table grows as longer contexts appear; it
// takes 8 bytes for each pair and position.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int rope_dim);

  // Makes positions [0, n_positions) available.
  void Extend(int n_positions);
  const float* cos(int position) const { return cos_.data() + n_pairs_ * position; }
  const float* sin(int position) const { return sin_.data() + n_pairs_ * position; }
  int rope_dim() const { return static_cast<int>(2 * n_pairs_); }
  // 1 / (cos^2 + sin^2) of every pair.
  float way_back() const { return static_cast<float>(1 / (amplitude_ * amplitude_)); }

 private:
  size_t n_pairs_;
  double amplitude_;
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // [n_positions, n_pairs]
};

// The tables of a model's layers; layers whose attention is of one kind share one.
class LayerRopes {
 public:
  LayerRopes(const AttentionLayers& attention, int rope_dim);

  // Makes positions [0, n_positions) available in all of them.
  void Extend(int n_positions);
  const RopeTable& of(int layer_idx) const { return tables_[TableOf(layer_idx)]; }
  RopeTable* mutable_of(int layer_idx) { return &tables_[TableOf(layer_idx)]; }

 private:
  int TableOf(int layer_idx) const {
    return table_of_layer_.empty() ? 0 : table_of_layer_[layer_idx];
  }
  std::vector<RopeTable> tables_;    // by kind of attention
  std::vector<int> table_of_layer_;  // empty: all have the first
};

// The same numbers block by block, for keys that are turned when they are read. Block b holds the
// positions from n_before + b * kBlockSize on. It takes another 8 bytes for each pair and position.
class BlockRotations {
 public:
  // Pairs are stored two by two, so rope_dim must be a multiple of 4.
  BlockRotations(const RopeConfig& config, int rope_dim, int n_before);

  // Makes blocks [0, n_blocks) available.
  void Extend(int64_t n_blocks, RopeTable* table);
  // The rotation from block 0 on; valid until the next Extend.
  KeyRotation rotation() const { return {cos_.data(), sin_.data(), half_, way_back_}; }

 private:
  int half_;
  int n_before_;
  float way_back_;
  std::vector<float> cos_, sin_;  // [n_blocks][half / 2][kBlockSize][2]
};

}  // namespace kvlathe
