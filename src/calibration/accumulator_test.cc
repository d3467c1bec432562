#include "calibration/accumulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr StatisticsShape kShape = {2, 4, 2, 16};

// One layer's activations for a chunk, with rows that differ in every array.
struct Chunk {
  Chunk(const StatisticsShape& shape, int n_tokens, int first_position, uint64_t seed) {
    Random random(seed);
    for (std::vector<float>* values : {&q_pre, &q_post, &k_pre, &k_post, &v}) {
      const bool is_query = values == &q_pre || values == &q_post;
      values->resize(int64_t{n_tokens} * (is_query ? shape.n_heads : shape.n_kv_heads) *
                     shape.head_dim);
      const double offset = random.Normal();
      for (float& x : *values) x = static_cast<float>(offset + random.Normal());
    }
    positions.resize(n_tokens);
    std::iota(positions.begin(), positions.end(), first_position);
  }
  QkvView View(int layer_idx) const {
    return {layer_idx,        static_cast<int>(positions.size()),
            positions.data(), q_pre.data(),
            q_post.data(),    k_pre.data(),
            k_post.data(),    v.data()};
  }
  std::vector<float> q_pre, q_post, k_pre, k_post, v;
  std::vector<int> positions;
};

// Moments by definition: rows of heads [first_head, first_head + n_heads) at positions that are
// (not) sinks.
struct PlainMoments {
  std::vector<double> mean;        // over rows
  std::vector<double> covariance;  // over tokens, summed over their rows
};
PlainMoments Moments(const std::vector<const Chunk*>& chunks,
                     const std::vector<float> Chunk::*array, int heads_per_token, int first_head,
                     int n_heads, bool sinks) {
  const int d = kShape.head_dim;
  std::vector<double> sum(d), squares(d * d);
  int n_tokens = 0;
  for (const Chunk* chunk : chunks) {
    for (size_t t = 0; t < chunk->positions.size(); ++t) {
      if ((chunk->positions[t] < 4) != sinks) continue;
      ++n_tokens;
      for (int h = first_head; h < first_head + n_heads; ++h) {
        const float* row = (chunk->*array).data() + (t * heads_per_token + h) * d;
        for (int i = 0; i < d; ++i) {
          sum[i] += row[i];
          for (int j = 0; j < d; ++j) squares[i * d + j] += double{row[i]} * row[j];
        }
      }
    }
  }
  for (double& x : sum) x /= n_tokens * n_heads;
  for (int i = 0; i < d * d; ++i) {
    squares[i] = squares[i] / n_tokens - n_heads * sum[i / d] * sum[i % d];
  }
  return {sum, squares};
}

void ExpectNear(const HeadMoments& found, int64_t head_idx, const PlainMoments& expected) {
  const int d = kShape.head_dim;
  for (int i = 0; i < d; ++i) {
    EXPECT_NEAR(found.mean[head_idx * d + i], expected.mean[i], 1e-5);
    for (int j = 0; j < d; ++j) {
      ASSERT_NEAR(found.covariance[(head_idx * d + i) * d + j], expected.covariance[i * d + j],
                  1e-4)
          << "head " << head_idx << " element " << i << ", " << j;
    }
  }
}

class AccumulatorTest : public ::testing::TestWithParam<int> {};

TEST_P(AccumulatorTest, MomentsAreThoseOfTheDefinition) {
  ThreadPool pool(GetParam());
  StatisticsAccumulator accumulator(kShape, &pool, AvailableIsas().back());
  // Two sequences: one in chunks that cut through the sinks and exceed a slice, one short.
  std::vector<Chunk> chunks[2];
  for (int l = 0; l < 2; ++l) {
    chunks[l].emplace_back(kShape, 3, 0, 10 + l);
    chunks[l].emplace_back(kShape, 600, 3, 20 + l);
    chunks[l].emplace_back(kShape, 9, 0, 30 + l);
  }
  for (int c = 0; c < 3; ++c) {
    for (int l = 0; l < 2; ++l) accumulator.Observe(chunks[l][c].View(l));
  }
  const auto s = accumulator.Finish();
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ(s->n_rows, 599 + 5);
  EXPECT_EQ(s->n_sink_rows, 8);
  for (int l = 0; l < 2; ++l) {
    const std::vector<const Chunk*> layer = {&chunks[l][0], &chunks[l][1], &chunks[l][2]};
    for (int g = 0; g < 2; ++g) {
      const int64_t head_idx = s->HeadIndex(l, g);
      ExpectNear(s->q_post, head_idx, Moments(layer, &Chunk::q_post, 4, 2 * g, 2, false));
      ExpectNear(s->k_post, head_idx, Moments(layer, &Chunk::k_post, 2, g, 1, false));
      ExpectNear(s->k_pre, head_idx, Moments(layer, &Chunk::k_pre, 2, g, 1, false));
      ExpectNear(s->v, head_idx, Moments(layer, &Chunk::v, 2, g, 1, false));
      ExpectNear(s->sink_q_post, head_idx, Moments(layer, &Chunk::q_post, 4, 2 * g, 2, true));
      ExpectNear(s->sink_k_post, head_idx, Moments(layer, &Chunk::k_post, 2, g, 1, true));
      ExpectNear(s->sink_v, head_idx, Moments(layer, &Chunk::v, 2, g, 1, true));
    }
    for (int h = 0; h < 4; ++h) {
      ExpectNear(s->q_pre, 4 * l + h, Moments(layer, &Chunk::q_pre, 4, h, 1, false));
    }
  }
}

TEST_P(AccumulatorTest, AcrossHeadsRowsOfAllKvHeadsAreOne) {
  ThreadPool pool(GetParam());
  StatisticsAccumulator alone(kShape, &pool, AvailableIsas().back());
  StatisticsAccumulator across(kShape, &pool, AvailableIsas().back(), /*across_heads=*/true);
  const Chunk chunks[2] = {Chunk(kShape, 700, 0, 41), Chunk(kShape, 700, 0, 42)};
  for (int l = 0; l < 2; ++l) {
    alone.Observe(chunks[l].View(l));
    across.Observe(chunks[l].View(l));
  }
  const auto s = across.Finish(), expected = alone.Finish();
  ASSERT_TRUE(s.ok() && expected.ok());
  EXPECT_TRUE(expected->k_pre_across_heads.empty());
  EXPECT_EQ(s->k_pre.covariance, expected->k_pre.covariance);
  EXPECT_EQ(s->q_post.covariance, expected->q_post.covariance);
  const int width = kShape.n_kv_heads * kShape.head_dim;
  const auto expect_covariance = [&](const std::vector<float>& found, int layer_idx,
                                     const std::vector<float>& rows) {
    for (int i = 0; i < width; ++i) {
      for (int j = 0; j < width; ++j) {
        double of_i = 0, of_j = 0, products = 0;
        for (int t = 4; t < 700; ++t) {
          const double x = rows[t * width + i], y = rows[t * width + j];
          of_i += x / 696, of_j += y / 696, products += x * y / 696;
        }
        ASSERT_NEAR(found[(layer_idx * width + i) * width + j], products - of_i * of_j, 1e-4);
      }
    }
  };
  for (int l = 0; l < 2; ++l) {
    expect_covariance(s->k_pre_across_heads, l, chunks[l].k_pre);
    expect_covariance(s->v_across_heads, l, chunks[l].v);
  }
}

TEST_P(AccumulatorTest, HistogramsCountEveryRowOnceWithoutSinks) {
  ThreadPool pool(GetParam());
  StatisticsAccumulator accumulator(kShape, &pool, AvailableIsas().back());
  const Chunk first(kShape, 300, 0, 1), second(kShape, 300, 300, 1);
  for (const Chunk* chunk : {&first, &second}) {
    accumulator.Observe(chunk->View(0));
    accumulator.Observe(chunk->View(1));
  }
  const auto s = accumulator.Finish();
  ASSERT_TRUE(s.ok()) << s.status();
  for (const ChannelHistograms* histograms :
       {&s->k_post_histograms, &s->k_pre_histograms, &s->v_histograms}) {
    ASSERT_EQ(histograms->n_channels(), 2 * 2 * 16);
    for (int64_t c = 0; c < histograms->n_channels(); ++c) {
      const float* counts = histograms->counts.data() + c * ChannelHistograms::kBins;
      EXPECT_EQ(std::accumulate(counts, counts + ChannelHistograms::kBins, 0.0), 596);
    }
  }
  // Channel 3 of layer 1, KV head 1 comes from that head's keys.
  float lowest = std::numeric_limits<float>::infinity();
  for (const Chunk* chunk : {&first, &second}) {
    for (size_t t = 0; t < chunk->positions.size(); ++t) {
      if (chunk->positions[t] >= 4) lowest = std::min(lowest, chunk->k_post[(t * 2 + 1) * 16 + 3]);
    }
  }
  EXPECT_EQ(s->k_post_histograms.min[(1 * 2 + 1) * 16 + 3], lowest);
}

TEST_P(AccumulatorTest, ValuesThatAreNotFiniteAreNamedByLayerAndKind) {
  ThreadPool pool(GetParam());
  for (const float bad : {std::numeric_limits<float>::infinity(), NAN, 1e30f}) {
    StatisticsAccumulator accumulator(kShape, &pool, AvailableIsas().back());
    Chunk good(kShape, 20, 0, 1), damaged(kShape, 20, 0, 2);
    damaged.k_post[300] = bad;
    damaged.v[400] = bad;
    accumulator.Observe(good.View(0));
    EXPECT_TRUE(accumulator.status().ok());
    accumulator.Observe(damaged.View(1));
    EXPECT_EQ(accumulator.status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(MessageOf(accumulator.status()),
              "layer 1: keys are not finite; the weights are damaged");
    EXPECT_FALSE(accumulator.Finish().ok());
  }
}

TEST_P(AccumulatorTest, SinksAloneAreNotEnough) {
  ThreadPool pool(GetParam());
  StatisticsAccumulator accumulator(kShape, &pool, AvailableIsas().back());
  const Chunk chunk(kShape, 4, 0, 1);
  accumulator.Observe(chunk.View(0));
  accumulator.Observe(chunk.View(1));
  EXPECT_EQ(accumulator.Finish().status().code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Workers, AccumulatorTest, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace kvlathe
