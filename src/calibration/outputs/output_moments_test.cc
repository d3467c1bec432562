#include "calibration/outputs/output_moments.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr StatisticsShape kOutputsShape = {2, 6, 2, 16};

struct OutputsChunk {
  OutputsChunk(int n_tokens, int first_position, uint64_t seed)
      : positions(n_tokens),
        rows(int64_t{n_tokens} * kOutputsShape.n_heads * kOutputsShape.head_dim) {
    Random random(seed);
    for (float& x : rows) x = static_cast<float>(3 + random.Normal());
    std::iota(positions.begin(), positions.end(), first_position);
  }
  OutputsView View(int layer_idx) const {
    return {layer_idx, static_cast<int>(positions.size()), positions.data(), rows.data()};
  }
  std::vector<int> positions;
  std::vector<float> rows;
};

// sum of o o^T over the query heads of a group, as a mean over tokens, in double.
TEST(OutputMoments, AreThoseOfTheGroupsOutputsBehindTheSinks) {
  ThreadPool pool(2);
  OutputMoments moments(kOutputsShape, &pool, AvailableIsas().back());
  const std::vector<OutputsChunk> chunks = {{3, 0, 1}, {300, 3, 2}, {20, 303, 3}};
  for (const OutputsChunk& chunk : chunks) {
    for (int layer = 0; layer < kOutputsShape.n_layers; ++layer) moments.Observe(chunk.View(layer));
  }
  CalibrationStatistics statistics;
  ASSERT_TRUE(moments.Finish(&statistics).ok());
  const int d = kOutputsShape.head_dim, group = kOutputsShape.gqa_group();
  for (int g = 0; g < kOutputsShape.n_kv_heads; ++g) {
    std::vector<double> expected(d * d);
    int n_tokens = 0;
    for (const OutputsChunk& chunk : chunks) {
      for (size_t t = 0; t < chunk.positions.size(); ++t) {
        if (chunk.positions[t] < kCalibrationSinks) continue;
        ++n_tokens;
        for (int h = g * group; h < (g + 1) * group; ++h) {
          const float* const o = &chunk.rows[(t * kOutputsShape.n_heads + h) * d];
          for (int i = 0; i < d * d; ++i) expected[i] += double{o[i / d]} * o[i % d];
        }
      }
    }
    for (int layer = 0; layer < kOutputsShape.n_layers; ++layer) {
      const int64_t head = layer * kOutputsShape.n_kv_heads + g;
      for (int i = 0; i < d * d; ++i) {
        // covariance + group mean mean^T
        const double found = statistics.outputs.covariance[head * d * d + i] +
                             group * double{statistics.outputs.mean[head * d + i / d]} *
                                 statistics.outputs.mean[head * d + i % d];
        ASSERT_NEAR(found, expected[i] / n_tokens, 1e-3);
      }
    }
  }
}

TEST(OutputMoments, NameTheLayerThatIsNotFinite) {
  ThreadPool pool(1);
  OutputMoments moments(kOutputsShape, &pool, AvailableIsas().back());
  OutputsChunk chunk(9, 0, 1);
  moments.Observe(chunk.View(0));
  chunk.rows.back() = std::numeric_limits<float>::quiet_NaN();
  moments.Observe(chunk.View(1));
  CalibrationStatistics statistics;
  const Status status = moments.Finish(&statistics);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(MessageOf(status).find("layer 1"), std::string::npos) << MessageOf(status);
}

}  // namespace
}  // namespace kvlathe
