// PredictedKl says what a cache of split bits is expected to lose, from what calibration measured
// of text that its maps and bits were not made from.
#pragma once

#include <vector>

#include "analysis/bases/basis_methods.h"
#include "analysis/statistics/statistics.h"
#include "base/threads.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

// How rows are stored besides their bits.
struct StoredForm {
  StoredUnit unit = StoredUnit::kToken;  // what codes of sealed rows count in
  bool codes_open_rows = false;          // SplitBitsCodec::codes_open_rows
};

struct PredictedLosses {
  // trace(F C) of sealed rows, in nats per predicted token, [n_layers].
  std::vector<double> keys, values;
  // The same of codes of 8 bits in all channels, if open rows have them.
  double open_rows = 0;

  // What they are expected to make of the KL, of which kl() is the sum: each times its factor
  // (docs/methods/lathe/measured.md, Predicted and measured).
  PredictedLosses InKl() const;
  // In nats per predicted token.
  double kl() const;
};

// Predicts the KL of storing every row behind the sinks in a basis whose channels have bits of
// their own. To second order it is trace(F C) (JointMoments) with C the covariance of what cut
// channels and codes lose of the text's rows, codes of each channel for itself and a cut
// kCoherentFactor times.
class LossPredictor {
 public:
  // The analysis splits bits and belongs to the model of the statistics; text.n_tokens is above 0.
  // Heads are looked at side by side; a null pool: one after the other.
  LossPredictor(const BasisAnalysis& analysis, const JointStatistics& text,
                const StatisticsShape& shape, ThreadPool* pool);

  // ranks: [n_layers * heads of the cache], as AllocateLatheBits gives them. With classes half of
  // the entries are of a prompt: a quarter, half and quarter of those are in each class, and their
  // errors cost as kClassWeight says.
  PredictedLosses At(const std::vector<HeadRanks>& ranks, const StoredForm& form) const;

 private:
  // K or V of one head of the cache, by stored channel of all that there are.
  struct Side {
    std::vector<double> metric;  // what an error of variance 1 costs
    // Of the text's rows, in squares of the deviations that the channels were given: about 1, and
    // far above it where a deviation is too small for these rows.
    std::vector<double> variances;
    std::vector<double> cuts;  // what is lost by a cut to 0, 16, 32, ... channels
  };
  static double LossOf(const Side& side, const BitSplit& bits, StoredUnit unit);
  static double LossOfOpenRows(const Side& side);

  int n_layers_ = 0, n_heads_ = 0;  // heads of a layer
  std::vector<Side> keys_, values_;
};

}  // namespace kvlathe
