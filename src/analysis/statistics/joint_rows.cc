#include "analysis/statistics/joint_rows.h"

#include "analysis/statistics/gram.h"
#include "base/check.h"

namespace kvlathe {

std::vector<double> SquareOf(const std::vector<float>& squares, const StatisticsShape& shape,
                             const JointChannels& channels) {
  const int width = JointHeads(shape) * shape.head_dim;
  const int64_t n_groups = int64_t{shape.n_kv_heads} * shape.head_dim / width;
  const int64_t group = channels.layer_idx * n_groups + channels.first / width;
  const int from = channels.first % width;
  KVL_CHECK(from + channels.dim <= width);
  std::vector<double> square;
  square.reserve(int64_t{channels.dim} * channels.dim);
  for (int i = from; i < from + channels.dim; ++i) {
    const auto row = squares.begin() + (group * width + i) * width + from;
    square.insert(square.end(), row, row + channels.dim);
  }
  return square;
}

std::span<const float> MeanOf(const std::vector<float>& means, const StatisticsShape& shape,
                              const JointChannels& channels) {
  // Groups lie side by side, and so do their channels.
  const int64_t first =
      int64_t{channels.layer_idx} * shape.n_kv_heads * shape.head_dim + channels.first;
  return std::span(means).subspan(first, channels.dim);
}

std::vector<double> JointRows::Priced() const {
  return WeightedSum(1 / (1 + kPlainShare), weighed, kPlainShare / (1 + kPlainShare), plain);
}

JointRows RowsAbout(std::span<const float> from, const JointMoments& moments,
                    const StatisticsShape& shape, const JointChannels& channels) {
  return {MomentsAbout(from, MeanOf(moments.weighed_mean, shape, channels),
                       SquareOf(moments.weighed_covariance, shape, channels)),
          MomentsAbout(from, MeanOf(moments.mean, shape, channels),
                       SquareOf(moments.covariance, shape, channels))};
}

}  // namespace kvlathe
