// A codebook is fitted to the distribution of a tensor's quotients: its centroids are found here.
#pragma once

#include <vector>

#include "format/codebook/codebook.h"

namespace kvlathe {

// Numbers in [-1, 1], in kBins equal bins that stand for their middles.
class QuotientHistogram {
 public:
  static constexpr int kBins = 4096;

  QuotientHistogram() : weights_(kBins), counts_(kBins) {}
  void Add(double quotient, double weight);

  // k-means by weight. `matches_moments`: the centroids are then stretched and shifted to the mean
  // and deviation that the numbers, counted once each, have; boundaries stay.
  Codebook Fit(int bits, bool matches_moments) const;

 private:
  void MatchMoments(const std::vector<double>& boundaries, std::vector<double>* centroids) const;

  std::vector<double> weights_, counts_;
};

}  // namespace kvlathe
