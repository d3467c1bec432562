#include "analysis/statistics/histogram.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

constexpr int kBinsPerDeviation = 16;
constexpr int kRowsPerOutsider = 500;  // one row in this many may fall outside the bins

// A bin position; out of range on both sides, it need only stay outside [0, kBins).
float BinPosition(float x, float center, float inverse_width) {
  return (x - center) * inverse_width + ChannelHistograms::kBins / 2;
}

void ChooseRange(const std::vector<float>& column, float* center, float* bin_width) {
  double sum = 0, sum_squares = 0;
  for (const float x : column) {
    sum += x;
    sum_squares += double{x} * x;
  }
  const double mean = sum / static_cast<double>(column.size());
  const double variance = sum_squares / static_cast<double>(column.size()) - mean * mean;
  // A constant channel still needs bins that a float can tell apart.
  const double deviation =
      std::max({std::sqrt(std::max(variance, 0.0)), 1e-4 * std::abs(mean), 1e-6});
  *center = static_cast<float>(mean);
  *bin_width = static_cast<float>(deviation / kBinsPerDeviation);
}

bool TooManyOutside(const std::vector<float>& column, float center, float bin_width) {
  const float inverse_width = 1.0f / bin_width;
  int64_t n_outside = 0;
  for (const float x : column) {
    const float position = BinPosition(x, center, inverse_width);
    n_outside += static_cast<int64_t>(position < 0) + (position >= ChannelHistograms::kBins);
  }
  return n_outside * kRowsPerOutsider > std::ssize(column);
}

void MergeBinPairs(float* counts) {
  constexpr int kHalf = ChannelHistograms::kBins / 2;
  float merged[ChannelHistograms::kBins] = {};
  for (int bin = 0; bin < ChannelHistograms::kBins; ++bin) {
    merged[bin / 2 + kHalf / 2] += counts[bin];
  }
  std::copy_n(merged, ChannelHistograms::kBins, counts);
}

}  // namespace

ChannelHistograms::ChannelHistograms(int64_t n_channels)
    : center(n_channels),
      bin_width(n_channels),
      min(n_channels),
      max(n_channels),
      counts(n_channels * kBins) {}

void ChannelHistograms::Add(const float* rows, int64_t n_rows, int64_t first_channel,
                            int n_values) {
  if (n_rows == 0) return;
  std::vector<float> column(n_rows);
  for (int i = 0; i < n_values; ++i) {
    const int64_t channel = first_channel + i;
    for (int64_t t = 0; t < n_rows; ++t) column[t] = rows[t * n_values + i];
    float* channel_counts = counts.data() + channel * kBins;
    if (bin_width[channel] == 0) {
      ChooseRange(column, &center[channel], &bin_width[channel]);
      min[channel] = max[channel] = column[0];
    }
    while (TooManyOutside(column, center[channel], bin_width[channel])) {
      MergeBinPairs(channel_counts);
      bin_width[channel] *= 2;
    }
    const float inverse_width = 1.0f / bin_width[channel];
    for (const float x : column) {
      const float position = BinPosition(x, center[channel], inverse_width);
      ++channel_counts[static_cast<int>(std::clamp(position, 0.0f, float{kBins - 1}))];
      min[channel] = std::min(min[channel], x);
      max[channel] = std::max(max[channel], x);
    }
  }
}

float ChannelHistograms::Percentile(int64_t channel, double share) const {
  const float* channel_counts = counts.data() + channel * kBins;
  double n_rows = 0;
  for (int bin = 0; bin < kBins; ++bin) n_rows += channel_counts[bin];
  if (n_rows == 0) return 0;
  const double wanted = share * n_rows;
  double n_below = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    const double n_here = channel_counts[bin];
    if (n_here > 0 && n_below + n_here >= wanted) {
      // The edge bins reach out to the outermost value.
      const float begin = bin == 0 ? min[channel] : BinBegin(channel, bin);
      const float end = bin == kBins - 1 ? max[channel] : BinBegin(channel, bin + 1);
      const double x = begin + (end - begin) * std::max(wanted - n_below, 0.0) / n_here;
      return std::clamp(static_cast<float>(x), min[channel], max[channel]);
    }
    n_below += n_here;
  }
  return max[channel];
}

}  // namespace kvlathe
