// What a cache of split bits is expected to lose, from what calibration measured of text that its
// maps and bits were not made from.
#pragma once

#include <vector>

#include "analysis/bases/method.h"
#include "analysis/statistics/statistics.h"
#include "base/threads.h"

namespace kvlathe {

// In nats per predicted token, [n_layers].
struct PredictedLosses {
  std::vector<double> keys, values;

  double kl() const;
};

// Predicts the KL, to second order, of storing every row behind the sinks in a basis whose channels
// have bits of their own: trace(F C) (JointMoments) with C the covariance of what cut channels and
// codes lose of the text's rows, codes of each channel for itself.
class LossPredictor {
 public:
  // The analysis splits bits and belongs to the model of the statistics; text.n_tokens is above 0.
  // Heads are looked at side by side; a null pool: one after the other.
  LossPredictor(const BasisAnalysis& analysis, const JointStatistics& text,
                const StatisticsShape& shape, ThreadPool* pool);

  // ranks: [n_layers * heads of the cache], as AllocateLatheBits gives them.
  PredictedLosses At(const std::vector<HeadRanks>& ranks) const;

 private:
  // K or V of one head of the cache, by stored channel of all that there are.
  struct Side {
    std::vector<double> metric;     // what an error of variance 1 costs
    std::vector<double> variances;  // of the text's rows
    std::vector<double> cuts;       // what is lost by a cut to 0, 16, 32, ... channels
  };
  double LossOf(const Side& side, const BitSplit& bits) const;

  int n_layers_ = 0, n_heads_ = 0;  // heads of a layer
  std::vector<Side> keys_, values_;
};

}  // namespace kvlathe
