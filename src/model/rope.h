// Rotary position embedding reads these tables (Su et al. 2021; HF half layout: channel i pairs
// with i + d/2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/codebook/codebook.h"
#include "format/keys.h"
#include "format/mean_angles.h"
#include "model/config.h"

namespace kvlathe {

// Returns the rotation frequencies of the rope_dim / 2 pairs after scaling, in radians per
// position.
std::vector<double> RopeFrequencies(const RopeConfig& config, int rope_dim);

// The mean of a row [head_dim] that is turned to each of the positions [0, n_positions). Channels
// behind rope_dim do not turn.
std::vector<float> MeanTurned(std::span<const float> row, const RopeConfig& rope, int rope_dim,
                              int n_positions);

// Cosines and sines by position, times the amplitude. The table grows as longer contexts appear; it
// takes 8 bytes for each pair and position.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int rope_dim);

  // Makes positions [0, n_positions) available.
  void Extend(int n_positions);
  // Gives the memory back of all positions, which Extend works out again.
  void Release();
  const float* cos(int position) const { return cos_.data() + n_pairs_ * position; }
  const float* sin(int position) const { return sin_.data() + n_pairs_ * position; }
  int rope_dim() const { return static_cast<int>(2 * n_pairs_); }
  int absolute_pairs() const { return AbsolutePairs(frequencies_); }  // format/keys.h
  // How many are available: at least as many as were asked for.
  int64_t n_positions() const { return n_pairs_ == 0 ? 0 : std::ssize(cos_) / n_pairs_; }
  // 1 / (cos^2 + sin^2) of every pair.
  float way_back() const { return static_cast<float>(1 / (amplitude_ * amplitude_)); }
  // MeanAngles of the first n_pairs pairs.
  std::vector<float> MeanAnglesOf(int n_pairs) const {
    return MakeMeanAngles(std::span(frequencies_).first(n_pairs), amplitude_);
  }

 private:
  int64_t n_pairs_;
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
// positions from n_before + b * kBlockSize on.
class BlockRotations {
 public:
  // Pairs are stored two by two, so rope_dim must be a multiple of 4.
  BlockRotations(const RopeConfig& config, int rope_dim, int n_before);

  // Numbers of a block in each of the two tables; 0: nothing turns.
  int64_t block_size() const { return int64_t{kBlockSize} * half_; }
  int half() const { return half_; }
  float way_back() const { return way_back_; }
  // Writes the numbers of blocks [first, first + n), [n][half / 2][kBlockSize][2], from `table`,
  // which grows as far as they reach.
  void Write(int64_t first, int64_t n, RopeTable* table, float* cos, float* sin) const;

 private:
  int half_;
  int n_before_;
  float way_back_;
};

}  // namespace kvlathe
