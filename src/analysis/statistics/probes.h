// Which cuts calibration measures for lathe's allocation of ranks.
#pragma once

#include <vector>

namespace kvlathe {

// Every pair is cut to a quarter, half and three quarters of its dimensions.
inline constexpr int kProbeCuts = 3;
// Codes of this many bits for all channels of a pair show what noise costs there.
inline constexpr int kProbeBits = 2;
// The newest positions have no codes then, as under the default of lathe(ratio=..). Noise costs
// most there, so much that it would hide what it costs everywhere else.
inline constexpr int kProbeNewest = 32;
// A KL that is measured below this is rounding.
inline constexpr double kLeastProbeKl = 1e-7;

// Returns the rank of each cut in ascending order: multiples of 16 from 16 to head_dim.
std::vector<int> ProbeRanks(int head_dim);

// Returns the sum of squares of values[begin .. end).
double SumOfSquares(const std::vector<double>& values, int begin, int end);

// Scales singular values so that the squares beyond ranks[i] sum to kl[i], which was measured
// there. Below ranks[0], and where a cut was measured to cost no more than a lighter one (which is
// noise), the scale of the dimensions behind is used. Without measurements (kl all 0) nothing
// changes.
std::vector<double> ScaledToProbes(std::vector<double> singular_values,
                                   const std::vector<int>& ranks, const float* kl);

}  // namespace kvlathe
