// The second moments of rows of several heads side by side as lathe and its predictions take them.
#pragma once

#include <span>
#include <vector>

#include "analysis/statistics/statistics.h"

namespace kvlathe {

// Rows weighed by their gradients are few; all rows of the text count this much beside them.
inline constexpr double kPlainShare = 0.1;

// Channels [first, first + dim) of the rows of a layer, which lie in one group of JointMoments.
struct JointChannels {
  int layer_idx = 0;
  int first = 0;
  int dim = 0;
};

// Of a square that JointMoments has, [dim, dim].
std::vector<double> SquareOf(const std::vector<float>& squares, const StatisticsShape& shape,
                             const JointChannels& channels);
// Of a mean that JointMoments has, [dim].
std::span<const float> MeanOf(const std::vector<float>& means, const StatisticsShape& shape,
                              const JointChannels& channels);

// Second moments about `from` [dim] (empty: zero), [dim, dim] each.
struct JointRows {
  std::vector<double> weighed;  // of rows as their gradients weigh them
  std::vector<double> plain;    // of all rows of the text
  // Both together: what errors of rows are priced by.
  std::vector<double> Priced() const;
};
JointRows RowsAbout(std::span<const float> from, const JointMoments& moments,
                    const StatisticsShape& shape, const JointChannels& channels);

}  // namespace kvlathe
