#include "analysis/statistics/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace kvlathe {
namespace {

double CountOf(const ChannelHistograms& histograms, int64_t channel) {
  const float* counts = histograms.counts.data() + channel * ChannelHistograms::kBins;
  return std::accumulate(counts, counts + ChannelHistograms::kBins, 0.0);
}

float ExactPercentile(std::vector<float> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

TEST(ChannelHistogramsTest, PercentilesFollowTheData) {
  // Channels of very different scale and offset, in chunks.
  constexpr int kChannels = 3, kRows = 6000, kChunk = 500;
  const double scales[] = {1e-3, 1, 200}, offsets[] = {0, 50, -30};
  Random random(3);
  std::vector<float> rows(kRows * kChannels);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(offsets[i % 3] + scales[i % 3] * random.Normal());
  }
  ChannelHistograms histograms(kChannels + 1);
  for (int begin = 0; begin < kRows; begin += kChunk) {
    histograms.Add(&rows[begin * kChannels], kChunk, 1, kChannels);
  }
  EXPECT_EQ(CountOf(histograms, 0), 0);
  for (int i = 0; i < kChannels; ++i) {
    std::vector<float> column;
    for (int t = 0; t < kRows; ++t) column.push_back(rows[t * kChannels + i]);
    EXPECT_EQ(CountOf(histograms, i + 1), kRows);
    for (const double share : {0.005, 0.1, 0.5, 0.995}) {
      EXPECT_NEAR(histograms.Percentile(i + 1, share), ExactPercentile(column, share),
                  0.15 * scales[i])
          << "channel " << i << " share " << share;
    }
    EXPECT_EQ(histograms.Percentile(i + 1, 0), *std::min_element(column.begin(), column.end()));
    EXPECT_EQ(histograms.Percentile(i + 1, 1), *std::max_element(column.begin(), column.end()));
  }
}

TEST(ChannelHistogramsTest, AChannelThatDriftsAwayStaysInsideTheBins) {
  std::vector<float> all;
  ChannelHistograms histograms(1);
  Random random(5);
  for (int chunk = 0; chunk < 10; ++chunk) {
    std::vector<float> rows(400);
    for (float& x : rows)
      x = static_cast<float>(10 * std::cos(0.3 * chunk) + 0.1 * random.Normal());
    histograms.Add(rows.data(), 400, 0, 1);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(CountOf(histograms, 0), 4000);
  EXPECT_LT(histograms.BinBegin(0, 0), -9.5f);
  const double tolerance = histograms.bin_width[0];
  EXPECT_LT(tolerance, 0.5);
  EXPECT_NEAR(histograms.Percentile(0, 0.005), ExactPercentile(all, 0.005), tolerance);
  EXPECT_NEAR(histograms.Percentile(0, 0.6), ExactPercentile(all, 0.6), tolerance);
}

TEST(ChannelHistogramsTest, ConstantChannelsAndSingleRowsWork) {
  ChannelHistograms histograms(2);
  const float rows[] = {3.0f, 0.0f, 3.0f, 0.0f};
  histograms.Add(rows, 1, 0, 2);
  histograms.Add(rows + 2, 1, 0, 2);
  EXPECT_EQ(CountOf(histograms, 0), 2);
  EXPECT_EQ(histograms.Percentile(0, 0.5), 3.0f);
  EXPECT_EQ(histograms.Percentile(1, 0.995), 0.0f);
}

TEST(ChannelHistogramsTest, OneHugeOutlierDoesNotCoarsenTheBins) {
  std::vector<float> rows(1000);
  Random random(6);
  for (float& x : rows) x = static_cast<float>(random.Normal());
  ChannelHistograms histograms(1);
  histograms.Add(rows.data(), 1000, 0, 1);
  const float width = histograms.bin_width[0];
  rows[17] = 1e30f;
  histograms.Add(rows.data(), 1000, 0, 1);
  EXPECT_EQ(histograms.bin_width[0], width);
  EXPECT_EQ(histograms.max[0], 1e30f);
  EXPECT_EQ(CountOf(histograms, 0), 2000);
}

}  // namespace
}  // namespace kvlathe
