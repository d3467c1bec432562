// The angles of a model's layers in the memory of a machine: by position, and block by block for
// keys that are turned when they are read.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/machine_buffer.h"
#include "machine/residents.h"
#include "model/config.h"
#include "model/rope.h"

namespace kvlathe {

class RotationTables {
 public:
  // Both outlive the tables.
  RotationTables(const ModelConfig& config, Device* memory);

  // Says that keys are stored from before RoPE, in blocks behind n_sink positions.
  void KeepBlocks(int n_sink);
  // Says that keys are turned inside frames behind n_sink positions (format/keys.h).
  void KeepFrames(int n_sink) { frames_behind_ = n_sink; }
  // Says that n_pairs of their pairs of channels lose a mean before they turn.
  void KeepMeanAngles(int n_pairs) { n_turning_pairs_ = n_pairs; }
  // Makes positions [0, n_positions) available. kResourceExhausted when there is no memory.
  Status Extend(int n_positions);
  // [n_positions, rope_dim / 2] F32. They turn keys and whatever turns back.
  ObjectPlace cos(int layer_idx) const { return positions_[TableOf(layer_idx)].cos.place(); }
  ObjectPlace sin(int layer_idx) const { return positions_[TableOf(layer_idx)].sin.place(); }
  // The same of queries on their way into a cache, times AttentionKind::GrowthAt.
  ObjectPlace query_cos(int layer_idx) const { return QueryAngles(layer_idx).cos.place(); }
  ObjectPlace query_sin(int layer_idx) const { return QueryAngles(layer_idx).sin.place(); }
  // The same of keys: with frames only absolute pairs have the angles of their position, the others
  // those of their place in its frame.
  ObjectPlace key_cos(int layer_idx) const { return KeyAngles(layer_idx).cos.place(); }
  ObjectPlace key_sin(int layer_idx) const { return KeyAngles(layer_idx).sin.place(); }
  // The table of MeanAngles of the pairs that have lost a mean.
  ObjectPlace mean_angles(int layer_idx) const { return mean_angles_[TableOf(layer_idx)].place(); }
  int absolute_pairs(int layer_idx) const { return ropes_.of(layer_idx).absolute_pairs(); }
  float way_back(int layer_idx) const { return ropes_.of(layer_idx).way_back(); }
  int rope_dim(int layer_idx) const { return ropes_.of(layer_idx).rope_dim(); }
  // The angles of the first n_blocks blocks of a layer; empty if keys do not turn when they are
  // read. kResourceExhausted when there is no memory.
  StatusOr<KeyRotationId> BlocksOf(int layer_idx, int64_t n_blocks);

 private:
  // Two tables that grow together, and how many of their rows hold numbers.
  struct Angles {
    MachineBuffer cos, sin;
    int64_t n_rows = 0;
  };

  const Angles& KeyAngles(int layer_idx) const {
    return (frames_behind_ < 0 ? positions_ : in_frames_)[TableOf(layer_idx)];
  }
  const Angles& QueryAngles(int layer_idx) const {
    return (Grows(TableOf(layer_idx)) ? grown_ : positions_)[TableOf(layer_idx)];
  }
  bool Grows(int table_idx) const { return config_.attention.kinds[table_idx].query_growth != 0; }
  // Makes [n_positions, rope_dim / 2] of both.
  Status Fill(const float* cos, const float* sin, int64_t n, Angles* angles);
  Status ExtendGrown(int table_idx, const RopeTable& table);
  Status ExtendInFrames(int table_idx, const RopeTable& table);
  Status MakeMeanAngles(int table_idx, const RopeTable& table);
  int TableOf(int layer_idx) const {
    return config_.attention.kinds.size() < 2 ? 0 : config_.attention.kind_idx(layer_idx);
  }

  const ModelConfig& config_;
  Device* memory_;
  LayerRopes ropes_;                        // which hold numbers only until they are on the machine
  std::vector<Angles> positions_;           // by kind of attention
  std::vector<Angles> grown_;               // likewise, of queries that grow
  std::vector<Angles> in_frames_;           // likewise, of keys in frames
  std::vector<MachineBuffer> mean_angles_;  // likewise
  int frames_behind_ = -1;                  // positions before the first frame; -1: there are none
  int n_turning_pairs_ = 0;
  std::vector<BlockRotations> blocks_;  // by kind of attention; none: keys do not turn when read
  std::vector<Angles> of_blocks_;       // likewise
};

}  // namespace kvlathe
