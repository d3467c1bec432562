// A file of lathe's maps holds what lathe reads of a model's statistics, for one form of keys, in a
// thirtieth of their bytes: so that a model can come with it and nobody has to wait for a
// calibration.
//
// Of a kind of rows lathe reads two symmetric matrices, P (covariance of rows, as errors in them
// are priced) and F (what errors cost). With the pair of maps that lose least (optimal_pair.h),
//
//     D^T F D = E^T P E = S = diag(s), D E^T = I        so        F = E S E^T,  P = D S D^T
//
// and a square map E in 16 bits with its s gives both again, for D is the inverse of E^T. Columns
// of E are kept with 1 as their largest number, and what that divides by goes into S.
#pragma once

#include <string>

#include "analysis/statistics/statistics.h"
#include "base/status.h"

namespace kvlathe {

// kFailedPrecondition where the statistics hold no gradients, kInvalidArgument where they are read
// of maps of other keys; other errors are those of WriteSafetensors. O(layers * width^3).
Status WriteLatheMaps(const CalibrationStatistics& statistics, KeyRows keys,
                      const std::string& path);

// Statistics whose `maps_of` is set: `covariance` and `weighed_covariance` are both P, about
// `weighed_mean`, which is `mean` too. No text is held back. Errors are those of ReadStatistics.
StatusOr<CalibrationStatistics> ReadLatheMaps(const std::string& path);

// ReadLatheMaps or ReadStatistics, as the file says what it is.
StatusOr<CalibrationStatistics> ReadStatisticsOrMaps(const std::string& path);

}  // namespace kvlathe
