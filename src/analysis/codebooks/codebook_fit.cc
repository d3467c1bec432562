#include "analysis/codebooks/codebook_fit.h"

#include <algorithm>
#include <cmath>

#include "analysis/codebooks/scalar_kmeans.h"

namespace kvlathe {
namespace {

double MiddleOf(int bin) { return (bin + 0.5) * 2 / QuotientHistogram::kBins - 1; }

struct Moments {
  double count = 0, first = 0, second = 0;

  void Add(double x, double n) {
    count += n;
    first += n * x;
    second += n * x * x;
  }
  double mean() const { return first / count; }
  double deviation() const { return std::sqrt(std::max(second / count - mean() * mean(), 0.0)); }
};

}  // namespace

void QuotientHistogram::Add(double quotient, double weight) {
  const int bin = std::clamp(static_cast<int>((quotient + 1) / 2 * kBins), 0, kBins - 1);
  weights_[bin] += weight;
  counts_[bin] += 1;
}

void QuotientHistogram::MatchMoments(const std::vector<double>& boundaries,
                                     std::vector<double>* centroids) const {
  Moments original, encoded;
  for (int bin = 0; bin < kBins; ++bin) {
    const double x = MiddleOf(bin);
    const auto code =
        std::lower_bound(boundaries.begin(), boundaries.end(), x) - boundaries.begin();
    original.Add(x, counts_[bin]);
    encoded.Add((*centroids)[code], counts_[bin]);
  }
  if (original.count == 0 || encoded.deviation() == 0) return;
  const double stretch = original.deviation() / encoded.deviation();
  for (double& c : *centroids) c = c * stretch + original.mean() - encoded.mean() * stretch;
}

Codebook QuotientHistogram::Fit(int bits, bool matches_moments) const {
  std::vector<double> middles(kBins);
  for (int bin = 0; bin < kBins; ++bin) middles[bin] = MiddleOf(bin);
  std::vector<double> centroids = FitCentroids(middles, weights_, 1 << bits);
  std::vector<double> boundaries;
  for (size_t i = 1; i < centroids.size(); ++i) {
    boundaries.push_back((centroids[i - 1] + centroids[i]) / 2);
  }
  if (matches_moments) MatchMoments(boundaries, &centroids);
  Codebook codebook{.n_codes = 1 << bits};
  std::ranges::copy(boundaries, codebook.boundaries.begin());
  std::ranges::copy(centroids, codebook.centroids.begin());
  return codebook;
}

}  // namespace kvlathe
