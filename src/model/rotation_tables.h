// Rotation tables hold the angles of a model's layers, by position, and block by block for keys
// that are turned when they are read.
#pragma once

#include <cstdint>
#include <vector>

#include "format/codebook/codebook.h"
#include "model/config.h"
#include "model/rope.h"

namespace kvlathe {

class RotationTables {
 public:
  explicit RotationTables(const ModelConfig& config)
      : config_(config), ropes_(config.attention, config.rope_dim()) {}

  // Says that keys are stored from before RoPE, in blocks behind n_sink positions.
  void KeepBlocks(int n_sink) {
    for (const AttentionKind& kind : config_.attention.kinds) {
      blocks_.emplace_back(kind.rope, config_.rope_dim(), n_sink);
    }
  }
  // Makes positions [0, n_positions) available.
  void Extend(int n_positions) { ropes_.Extend(n_positions); }
  const RopeTable& of(int layer_idx) const { return ropes_.of(layer_idx); }
  // The angles of the first n_blocks blocks of a layer; empty if keys do not turn when they are
  // read.
  KeyRotation BlocksOf(int layer_idx, int64_t n_blocks) {
    if (blocks_.empty()) return {};
    BlockRotations& blocks = blocks_[config_.attention.kind_idx(layer_idx)];
    blocks.Extend(n_blocks, ropes_.mutable_of(layer_idx));
    return blocks.rotation();
  }

 private:
  const ModelConfig& config_;
  LayerRopes ropes_;
  std::vector<BlockRotations> blocks_;  // by kind of attention
};

}  // namespace kvlathe
