#include "calibration/basis_histograms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kHeads = 2, kDim = 4, kTokens = 600, kRankK = 3, kRankV = 2;

std::vector<float> Drawn(Random* random, int64_t n) {
  std::vector<float> rows(n);
  for (float& x : rows) x = static_cast<float>(random->Normal());
  return rows;
}

// The values between which all of a channel lie, and its median, are those of the mapped rows.
TEST(BasisHistograms, AreThoseOfMappedRows) {
  Random random(8);
  ModelBasis basis{1, kHeads, kDim, {}};
  for (int g = 0; g < kHeads; ++g) {
    basis.heads.push_back({.rank_k = kRankK,
                           .rank_v = kRankV,
                           .key_basis = Drawn(&random, kDim * kRankK),
                           .value_basis = Drawn(&random, kDim * kRankV),
                           .key_offset = Drawn(&random, kDim)});
  }
  for (const bool is_latent : {false, true}) {
    basis.keys = is_latent ? Keys(LatentKeys{}) : Keys(MappedKeys{});
    ThreadPool pool(2);
    BasisHistogramSums sums(&basis, &pool);
    const std::vector<float> k_pre = Drawn(&random, kTokens * kHeads * kDim);
    const std::vector<float> k_post = Drawn(&random, kTokens * kHeads * kDim);
    const std::vector<float> v = Drawn(&random, kTokens * kHeads * kDim);
    std::vector<int> positions(kTokens);
    for (int t = 0; t < kTokens; ++t) positions[t] = t;
    sums.Observe({.layer_idx = 0,
                  .n_tokens = kTokens,
                  .positions = positions.data(),
                  .k_pre = k_pre.data(),
                  .k_post = k_post.data(),
                  .v = v.data()});
    const auto expect_channel = [&](const ChannelHistograms& histograms, const float* rows,
                                    const std::vector<float>& offset, const std::vector<float>& map,
                                    int g, int r, int rank) {
      std::vector<float> mapped;
      for (int t = kCalibrationSinks; t < kTokens; ++t) {
        double x = 0;
        for (int i = 0; i < kDim; ++i) {
          const double row = rows[(t * kHeads + g) * kDim + i];
          x += (row - (offset.empty() ? 0 : offset[i])) * map[i * rank + r];
        }
        mapped.push_back(static_cast<float>(x));
      }
      std::ranges::sort(mapped);
      const int channel = g * kDim + r;
      EXPECT_NEAR(histograms.min[channel], mapped.front(), 1e-4);
      EXPECT_NEAR(histograms.max[channel], mapped.back(), 1e-4);
      EXPECT_NEAR(histograms.Percentile(channel, 0.5), mapped[mapped.size() / 2],
                  0.05 * (mapped.back() - mapped.front()));
    };
    for (int g = 0; g < kHeads; ++g) {
      const HeadBasis& head = basis.heads[g];
      for (int r = 0; r < kRankK; ++r) {
        expect_channel(sums.histograms().k, is_latent ? k_pre.data() : k_post.data(),
                       head.key_offset, head.key_basis, g, r, kRankK);
      }
      for (int r = 0; r < kRankV; ++r) {
        expect_channel(sums.histograms().v, v.data(), {}, head.value_basis, g, r, kRankV);
      }
      EXPECT_EQ(sums.histograms().k.bin_width[g * kDim + kRankK], 0);  // nobody stores it
    }
  }
}

}  // namespace
}  // namespace kvlathe
