// The means that keys lose before they turn (MappedKeys::turning_pairs), and what moments of keys
// in frames become when they lose others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "calibration/moment_sums.h"
#include "calibration/position_shift.h"

namespace kvlathe {

// Keys are x = R(o)(k - m), o the place in a frame, or the position without frames. The mean m that
// serves them is known when all keys have been seen: that of keys before RoPE as gradients weigh
// them, which is not the mean of all keys. So moments are summed with the mean of the first keys,
// and with the angles of positions beside x: R(o) times any change of the mean is linear in them,
// and is taken off the moments in the end, exactly. Moments of keys that lose no mean are those
// that lose none of it.
class TurningMeans {
 public:
  // The fastest n_pairs pairs of channels have them; the channels of a pair are (i, i + half).
  TurningMeans(const StatisticsShape& shape, int n_pairs, int half);

  // Takes keys before RoPE [n_rows, n_kv_heads * head_dim] of a layer as the first ones, unless it
  // has seen some.
  void See(int layer_idx, const float* k_pre, int64_t n_rows);
  const float* of(int layer_idx) const;  // [n_kv_heads, head_dim]: those of the first keys

  // Numbers of a row of RowsWithAngles: those of a group of heads, and the cosines and sines.
  int64_t RowWidth() const;
  // Rows of one sequence in a layer.
  struct Keys {
    int layer_idx;
    const PositionShift& shift;
    std::span<const int> positions;
  };
  // Keys before RoPE [positions, n_kv_heads * head_dim] as TurnInFrames makes them with of(layer),
  // the angles behind those of each group: [positions, n_groups, RowWidth()].
  void FrameRowsWithAngles(const Keys& keys, const float* k_pre, std::vector<float>* rows) const;
  // The same of keys after RoPE, turned on by the shift, less of(layer) turned likewise.
  void RowsWithAngles(const Keys& keys, const float* k_post, std::vector<float>* rows) const;

  // The means that count, of the sums of keys before RoPE; layers without weight keep the first.
  void Settle(const JointSums& keys_before_rope);
  // Moments of rows with angles, of all layers, as those of keys less the settled means, or less
  // nothing.
  JointSums WithSettledMeans(const JointSums& rows_with_angles) const {
    return LessMeans(rows_with_angles, settled_);
  }
  JointSums WithoutMeans(const JointSums& rows_with_angles) const {
    return LessMeans(rows_with_angles, std::vector<float>(settled_.size()));
  }
  const std::vector<float>& settled() const {
    return settled_;
  }  // [n_layers, n_kv_heads, head_dim]

  void AppendTo(SumBytes* bytes);

 private:
  bool Turns(int64_t channel_of_head) const {
    return channel_of_head < 2 * half_ && channel_of_head % half_ < n_pairs_;
  }
  void PutAngles(const Keys& keys, PositionShift::Frames frames, const std::vector<float>& turned,
                 std::vector<float>* rows) const;
  // M [width, 2 n_pairs] of a group: R(o) times `means` is M times the angles. In F64.
  std::vector<double> MeansByAngles(int64_t layer_idx, int64_t group,
                                    const std::vector<double>& means) const;
  JointSums LessMeans(const JointSums& rows_with_angles, const std::vector<float>& means) const;

  StatisticsShape shape_;
  int n_pairs_, half_;
  int64_t width_, n_groups_;  // channels of the heads of a group, and how many there are in a layer
  std::vector<float> first_, settled_;  // [n_layers, n_kv_heads, head_dim]
  std::vector<int64_t> n_rows_;         // [n_layers] behind first_
};

}  // namespace kvlathe
