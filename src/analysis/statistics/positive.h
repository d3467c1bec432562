// Whether second moments are those of rows.
#pragma once

#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"

namespace kvlathe {

// Whether a symmetric matrix [dim, dim] can be a sum of squares of rows: no direction has less than
// nothing, but for the rounding of its numbers to F32.
bool IsSumOfSquares(const std::vector<double>& matrix, int dim);

// kDataLoss, naming layer and rows, if a covariance of these statistics has a direction of negative
// variance: sums have lost their digits then, and nothing may be made from them.
Status CheckCovariances(const CalibrationStatistics& statistics, ThreadPool* pool);

}  // namespace kvlathe
