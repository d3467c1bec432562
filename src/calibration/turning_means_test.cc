#include "calibration/turning_means.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// Two groups of eight heads of 48 channels, of which 40 turn, the fastest 8 pairs with means.
constexpr StatisticsShape kTurningShape = {
    .n_layers = 2, .n_heads = 16, .n_kv_heads = 16, .head_dim = 48};
constexpr int kTurningPairs = 8, kTurningHalf = 20;
constexpr int64_t kTurningStride = 16 * 48, kTurningWidth = 8 * 48;

std::vector<float> DrawTurningKeys(int64_t n_rows, uint64_t seed) {
  Random random(seed);
  std::vector<float> keys(n_rows * kTurningStride);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] =
        static_cast<float>(random.Normal() + 5 * std::sin(static_cast<double>(i % kTurningStride)));
  }
  return keys;
}

// The moments of rows of one matrix about their mean, in double.
struct WeighedMoments {
  std::vector<double> mean, scatter;
};
WeighedMoments WeighedMomentsOf(const std::vector<float>& rows, const std::vector<double>& weights,
                                int64_t width, int64_t first, int64_t stride) {
  WeighedMoments moments = {std::vector<double>(width), std::vector<double>(width * width)};
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t t = 0; t < weights.size(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      moments.mean[i] += weights[t] / sum * rows[t * stride + first + i];
    }
  }
  for (size_t t = 0; t < weights.size(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const double x = weights[t] * (rows[t * stride + first + i] - moments.mean[i]);
      for (int64_t j = 0; j < width; ++j) {
        moments.scatter[i * width + j] += x * (rows[t * stride + first + j] - moments.mean[j]);
      }
    }
  }
  return moments;
}

class TurningMeansTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 40;
  TurningMeansTest() {
    std::iota(positions_.begin(), positions_.end(), 3);
    Random random(7);
    for (double& weight : weights_) weight = std::exp(2 * random.Normal());
    const std::vector<float> first = DrawTurningKeys(3, 1);
    for (int l = 0; l < 2; ++l) means_.See(l, first.data(), 3);
  }
  // Of the rows of layer 1, group 1; other matrices stay 0.
  JointSums SumsOf(const std::vector<float>& rows, int64_t width) const {
    JointSums sums = {std::vector<double>(4), std::vector<double>(4 * width),
                      std::vector<double>(4 * width * width)};
    const WeighedMoments moments = WeighedMomentsOf(rows, weights_, width, width, 2 * width);
    sums.weight[3] = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    std::copy(moments.mean.begin(), moments.mean.end(), sums.mean.begin() + 3 * width);
    std::copy(moments.scatter.begin(), moments.scatter.end(),
              sums.scatter.begin() + 3 * width * width);
    return sums;
  }

  const std::vector<float> keys_ = DrawTurningKeys(kRows, 2);
  std::vector<int> positions_ = std::vector<int>(kRows);
  std::vector<double> weights_ = std::vector<double>(kRows);
  PositionShift shift_{700, std::vector<double>(kTurningHalf, 0.3), 1.5};
  TurningMeans means_{kTurningShape, kTurningPairs, kTurningHalf};
};

TEST_F(TurningMeansTest, MomentsWithSettledMeansAreThoseOfKeysThatLostThem) {
  std::vector<float> rows;
  means_.FrameRowsWithAngles({1, shift_, positions_}, keys_.data(), &rows);
  ASSERT_EQ(means_.RowWidth(), kTurningWidth + 2 * kTurningPairs);
  ASSERT_EQ(std::ssize(rows), kRows * 2 * means_.RowWidth());
  means_.Settle(SumsOf(keys_, kTurningWidth));
  const JointSums settled = means_.WithSettledMeans(SumsOf(rows, means_.RowWidth()));

  std::vector<float> turned(keys_.size());
  const float* const mean = means_.settled().data() + kTurningStride;
  shift_.TurnInFrames({positions_, 16, 48, keys_.data(), mean}, turned.data());
  const WeighedMoments expected =
      WeighedMomentsOf(turned, weights_, kTurningWidth, kTurningWidth, kTurningStride);
  EXPECT_EQ(settled.weight[3], std::accumulate(weights_.begin(), weights_.end(), 0.0));
  for (int64_t i = 0; i < kTurningWidth; ++i) {
    ASSERT_NEAR(settled.mean[3 * kTurningWidth + i], expected.mean[i], 1e-4) << i;
    for (int64_t j = 0; j < kTurningWidth; ++j) {
      const double at = settled.scatter[(3 * kTurningWidth + i) * kTurningWidth + j];
      ASSERT_NEAR(at, expected.scatter[i * kTurningWidth + j], 1e-3 * settled.weight[3])
          << i << " " << j;
    }
  }
}

// Without frames, less the settled means and less none of them.
TEST_F(TurningMeansTest, MomentsWithoutFramesAreThoseOfKeysAfterRope) {
  // Keys after RoPE as a sequence has them, which the shift turns on.
  std::vector<float> k_post(keys_.size()), turned(keys_.size()), rows;
  const std::vector<double> frequencies(kTurningHalf, 0.3);
  const auto turn = [&](const float* mean, int first, std::vector<float>* to) {
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto token = static_cast<int64_t>(i) / kTurningStride;
      const int64_t channel = static_cast<int64_t>(i) % kTurningStride, d = channel % 48;
      const auto less = [&](int64_t c) {
        return keys_[token * kTurningStride + c] - (mean == nullptr ? 0 : mean[c]);
      };
      if (d >= 2 * kTurningHalf) {
        (*to)[i] = less(channel);
        continue;
      }
      const double angle = 0.3 * (first + positions_[token]);
      const double partner = d < kTurningHalf ? -less(channel + kTurningHalf)  // of the pair
                                              : less(channel - kTurningHalf);
      (*to)[i] =
          static_cast<float>(1.5 * (less(channel) * std::cos(angle) + partner * std::sin(angle)));
    }
  };
  turn(nullptr, 0, &k_post);
  means_.RowsWithAngles({1, shift_, positions_}, k_post.data(), &rows);
  means_.Settle(SumsOf(keys_, kTurningWidth));
  const JointSums sums = SumsOf(rows, means_.RowWidth());
  for (const bool is_settled : {true, false}) {
    SCOPED_TRACE(is_settled);
    const float* const mean = means_.settled().data() + kTurningStride;
    turn(is_settled ? mean : nullptr, 700, &turned);
    const JointSums got = is_settled ? means_.WithSettledMeans(sums) : means_.WithoutMeans(sums);
    const WeighedMoments expected =
        WeighedMomentsOf(turned, weights_, kTurningWidth, kTurningWidth, kTurningStride);
    for (int64_t i = 0; i < kTurningWidth; ++i) {
      ASSERT_NEAR(got.mean[3 * kTurningWidth + i], expected.mean[i], 1e-4) << i;
      for (int64_t j = 0; j < kTurningWidth; ++j) {
        const double at = got.scatter[(3 * kTurningWidth + i) * kTurningWidth + j];
        ASSERT_NEAR(at, expected.scatter[i * kTurningWidth + j], 1e-3 * got.weight[3])
            << i << " " << j;
      }
    }
  }
}

TEST_F(TurningMeansTest, WeighedMeansSettleInTheFastestPairsAndFirstOnesStayWithoutWeight) {
  const JointSums of_keys = SumsOf(keys_, kTurningWidth);
  means_.Settle(of_keys);
  const float* const of_layer = means_.settled().data() + kTurningStride;
  for (int64_t i = 0; i < kTurningStride; ++i) {
    const int64_t channel = i % 48;
    const bool turns = channel < 40 && channel % kTurningHalf < kTurningPairs;
    if (!turns) {
      EXPECT_EQ(of_layer[i], 0) << i;
    } else if (i < kTurningWidth) {  // a group without weight
      EXPECT_EQ(of_layer[i], means_.of(1)[i]) << i;
    } else {
      EXPECT_EQ(of_layer[i],
                ToFloat(ToBf16(static_cast<float>(of_keys.mean[2 * kTurningWidth + i]))));
    }
  }
}

}  // namespace
}  // namespace kvlathe
