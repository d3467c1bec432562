// A histogram holds the distribution of a single channel: enough for percentiles, codebooks and
// plots, in memory that does not grow with the number of tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace kvlathe {

// One histogram per channel with kBins equal bins about a centre of its own. The first rows seen
// fix centre (their mean) and bin width (1/16 of their standard deviation, so +-4 deviations are
// covered). A channel whose later rows leave that range (a post-RoPE key turns with its position)
// doubles its bin width, merging pairs of bins exactly, until at most 1 in 500 rows of a chunk
// falls outside; those few count in the edge bins and in min and max. The 0.5% and 99.5%
// percentiles of KVQuant (Hooper et al., 2024) therefore stay inside the bins.
struct ChannelHistograms {
  static constexpr int kBins = 128;

  explicit ChannelHistograms(int64_t n_channels = 0);

  int64_t n_channels() const { return static_cast<int64_t>(center.size()); }

  // Adds rows [n_rows, n_values] (contiguous, all finite) to channels
  // [first_channel, first_channel + n_values). Threads may work on disjoint channels.
  void Add(const float* rows, int64_t n_rows, int64_t first_channel, int n_values);

  // The value below which `share` (in [0, 1]) of the channel's rows lie, linear within a bin and
  // never outside [min, max]. 0 for a channel without rows.
  float Percentile(int64_t channel, double share) const;

  float BinBegin(int64_t channel, int bin) const {
    const int n_bins_from_center = bin - kBins / 2;
    return center[channel] + static_cast<float>(n_bins_from_center) * bin_width[channel];
  }

  std::vector<float> center;     // [n_channels]
  std::vector<float> bin_width;  // [n_channels], 0 until rows arrive
  std::vector<float> min;        // [n_channels], exact
  std::vector<float> max;        // [n_channels], exact
  std::vector<float> counts;     // [n_channels, kBins], whole numbers (exact below 2^24)
};

}  // namespace kvlathe
