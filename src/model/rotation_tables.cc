#include "model/rotation_tables.h"

#include <algorithm>
#include <span>

namespace kvlathe {
namespace {

std::span<const std::byte> Bytes(const float* numbers, int64_t n) {
  return std::as_bytes(std::span(numbers, static_cast<size_t>(n)));
}

}  // namespace

RotationTables::RotationTables(const ModelConfig& config, Device* memory)
    : config_(config),
      memory_(memory),
      ropes_(config.attention, config.rope_dim()),
      positions_(config.attention.kinds.size()),
      grown_(config.attention.kinds.size()),
      in_frames_(config.attention.kinds.size()),
      mean_angles_(config.attention.kinds.size()) {}

void RotationTables::KeepBlocks(int n_sink) {
  for (const AttentionKind& kind : config_.attention.kinds) {
    blocks_.emplace_back(kind.rope, config_.rope_dim(), n_sink);
  }
  of_blocks_.resize(blocks_.size());
}

Status RotationTables::Extend(int n_positions) {
  if (config_.rope_dim() == 0) return OkStatus();
  for (int l = 0; l < config_.n_layers; ++l) {
    Angles& angles = positions_[TableOf(l)];
    if (angles.n_rows >= n_positions) continue;
    RopeTable& table = *ropes_.mutable_of(l);
    table.Extend(static_cast<int>(std::max<int64_t>(n_positions, 2 * angles.n_rows)));
    const int64_t n = table.n_positions() * (table.rope_dim() / 2);
    KVL_RETURN_IF_ERROR(Fill(table.cos(0), table.sin(0), n, &angles));
    angles.n_rows = table.n_positions();
    if (Grows(TableOf(l))) KVL_RETURN_IF_ERROR(ExtendGrown(TableOf(l), table));
    if (frames_behind_ >= 0) KVL_RETURN_IF_ERROR(ExtendInFrames(TableOf(l), table));
    if (n_turning_pairs_ > 0) KVL_RETURN_IF_ERROR(MakeMeanAngles(TableOf(l), table));
    table.Release();
  }
  return OkStatus();
}

Status RotationTables::Fill(const float* cos, const float* sin, int64_t n, Angles* angles) {
  KVL_RETURN_IF_ERROR(angles->cos.EnsureSize(memory_, n * 4, "rotation tables"));
  KVL_RETURN_IF_ERROR(angles->sin.EnsureSize(memory_, n * 4, "rotation tables"));
  memory_->Upload(angles->cos.place(), Bytes(cos, n));
  memory_->Upload(angles->sin.place(), Bytes(sin, n));
  return OkStatus();
}

Status RotationTables::ExtendGrown(int table_idx, const RopeTable& table) {
  const AttentionKind& kind = config_.attention.kinds[table_idx];
  const int64_t half = table.rope_dim() / 2, n = table.n_positions() * half;
  std::vector<float> cos(table.cos(0), table.cos(0) + n), sin(table.sin(0), table.sin(0) + n);
  for (int64_t i = 0; i < n; ++i) {
    const auto growth = static_cast<float>(kind.GrowthAt(static_cast<int>(i / half)));
    cos[i] *= growth;
    sin[i] *= growth;
  }
  return Fill(cos.data(), sin.data(), n, &grown_[table_idx]);
}

Status RotationTables::ExtendInFrames(int table_idx, const RopeTable& table) {
  const int64_t half = table.rope_dim() / 2, n_absolute = table.absolute_pairs();
  std::vector<float> cos, sin;
  cos.reserve(table.n_positions() * half);
  sin.reserve(table.n_positions() * half);
  for (int p = 0; p < table.n_positions(); ++p) {
    const int place = p < frames_behind_ ? p : (p - frames_behind_) % kFramePositions;
    for (int64_t i = 0; i < half; ++i) {
      const int at = i < n_absolute ? p : place;
      cos.push_back(table.cos(at)[i]);
      sin.push_back(table.sin(at)[i]);
    }
  }
  return Fill(cos.data(), sin.data(), std::ssize(cos), &in_frames_[table_idx]);
}

Status RotationTables::MakeMeanAngles(int table_idx, const RopeTable& table) {
  const std::vector<float> of_mean = table.MeanAnglesOf(n_turning_pairs_);
  MachineBuffer& mean_angles = mean_angles_[table_idx];
  KVL_RETURN_IF_ERROR(mean_angles.EnsureSize(memory_, std::ssize(of_mean) * 4, "rotation tables"));
  memory_->Upload(mean_angles.place(), Bytes(of_mean.data(), std::ssize(of_mean)));
  return OkStatus();
}

StatusOr<KeyRotationId> RotationTables::BlocksOf(int layer_idx, int64_t n_blocks) {
  if (blocks_.empty()) return KeyRotationId();
  const BlockRotations& blocks = blocks_[TableOf(layer_idx)];
  Angles& angles = of_blocks_[TableOf(layer_idx)];
  if (blocks.half() > 0 && angles.n_rows < n_blocks) {
    const int64_t n = std::max(n_blocks, 2 * angles.n_rows);
    std::vector<float> cos(n * blocks.block_size()), sin(cos.size());
    RopeTable& table = *ropes_.mutable_of(layer_idx);
    blocks.Write(0, n, &table, cos.data(), sin.data());
    table.Release();
    KVL_RETURN_IF_ERROR(Fill(cos.data(), sin.data(), std::ssize(cos), &angles));
    angles.n_rows = n;
  }
  return KeyRotationId{angles.cos.place(), angles.sin.place(), blocks.half(), blocks.way_back()};
}

}  // namespace kvlathe
