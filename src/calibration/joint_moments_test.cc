#include "calibration/joint_moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr StatisticsShape kTwoGroups = {2, 16, 16, 48};  // groups of 8 heads of the 16
constexpr int64_t kWidth = 8 * 48, kStride = 16 * 48;

std::vector<float> DrawJointRows(int64_t n_tokens, uint64_t seed) {
  Random random(seed);
  std::vector<float> rows(n_tokens * kStride);
  for (float& x : rows) x = static_cast<float>(0.5 + random.Normal());
  return rows;
}

// The mean over tokens [first, n_tokens) of a column.
double MeanOf(const std::vector<float>& rows, int64_t first, int64_t column) {
  const auto n_tokens = std::ssize(rows) / kStride;
  double sum = 0;
  for (int64_t t = first; t < n_tokens; ++t) sum += rows[t * kStride + column];
  return sum / static_cast<double>(n_tokens - first);
}

// The covariance of two columns over the same tokens.
double CovarianceOf(const std::vector<float>& rows, int64_t first, int64_t a, int64_t b) {
  const auto n_tokens = std::ssize(rows) / kStride;
  const double of_a = MeanOf(rows, first, a), of_b = MeanOf(rows, first, b);
  double sum = 0;
  for (int64_t t = first; t < n_tokens; ++t) {
    sum += (rows[t * kStride + a] - of_a) * (rows[t * kStride + b] - of_b);
  }
  return sum / static_cast<double>(n_tokens - first);
}

// Sums over tokens [first, n_tokens) of products of columns of one group.
double SumOfProducts(const std::vector<float>& rows, int64_t first, int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t t = first; t * kStride < std::ssize(rows); ++t) {
    sum += double{rows[t * kStride + a]} * rows[t * kStride + b];
  }
  return sum;
}

TEST(JointMomentSumsTest, EachPartHasItsRowsBehindTheSinksAndKeysTurn) {
  ASSERT_EQ(JointHeads(kTwoGroups), 8);
  ThreadPool pool(3);
  JointMomentSums sums(kTwoGroups, /*n_pairs=*/8, /*half=*/24, &pool);
  std::vector<double> frequencies(24, 0.1);
  std::fill_n(frequencies.begin() + 20, 4, 0.01);
  const std::vector<PositionShift> shifts(2, PositionShift(300, frequencies, 1.5)),
      none(2, PositionShift(0, frequencies));
  const std::vector<float> k_post = DrawJointRows(20, 1), k_pre = DrawJointRows(20, 2),
                           v = DrawJointRows(20, 3);
  const std::vector<float> other = DrawJointRows(9, 4);
  std::vector<int> positions(20);
  std::iota(positions.begin(), positions.end(), 0);
  for (int l = 0; l < 2; ++l) {
    sums.BeginSequence(shifts, false);
    sums.Observe(
        {l, 20, positions.data(), nullptr, nullptr, k_pre.data(), k_post.data(), v.data()});
    sums.BeginSequence(none, true);
    sums.Observe(
        {l, 9, positions.data(), nullptr, nullptr, other.data(), other.data(), other.data()});
  }
  CalibrationStatistics s = MakeStatistics(kTwoGroups);
  sums.Finish(&s);
  std::vector<float> turned = k_post;
  shifts[0].Apply(20 * 16, 48, turned.data());
  const int64_t of_group = (1 * 2 + 1) * kWidth * kWidth;  // layer 1, group 1
  for (const auto& [a, b] : {std::pair<int64_t, int64_t>{0, 0}, {5, 300}, {300, 5}, {383, 100}}) {
    const int64_t at = of_group + a * kWidth + b, first = kWidth;  // first column of the group
    EXPECT_NEAR(s.joint.k.covariance[at], CovarianceOf(turned, 4, first + a, first + b), 1e-4);
    EXPECT_NEAR(s.joint.k_pre.covariance[at], CovarianceOf(k_pre, 4, first + a, first + b), 1e-4);
    EXPECT_NEAR(s.joint.v.covariance[at], CovarianceOf(v, 4, first + a, first + b), 1e-4);
    EXPECT_NEAR(s.held_back.v.covariance[at], CovarianceOf(other, 4, first + a, first + b), 1e-4);
  }
  EXPECT_NEAR(s.joint.v.mean[(1 * 2 + 1) * kWidth + 9], MeanOf(v, 4, kWidth + 9), 1e-5);

  // The mean of the first rows before RoPE, rounded to Bf16, in the fastest pairs.
  for (const int64_t channel : {0, 7, 24, 31}) {
    const int64_t at = kWidth + 48 + channel;
    EXPECT_NEAR(s.turning_mean[kStride + at], MeanOf(k_pre, 4, at),
                0.004 * std::abs(MeanOf(k_pre, 4, at)));
  }
  for (const int64_t channel : {8, 23, 32, 47}) EXPECT_EQ(s.turning_mean[kStride + channel], 0);
  // All pairs go round more than twice in a frame, but for the last ones.
  std::vector<float> in_frames(k_pre.size());
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t head = 0; head < 16; ++head) {
      for (int64_t i = 0; i < 24; ++i) {
        const int64_t row = t * kStride + head * 48, of_mean = kStride + head * 48 + i;
        const double place = static_cast<double>(i < 20 ? 300 + t : (300 + t - 4) % 256);
        const double angle = place * (i < 20 ? 0.1 : 0.01);
        const double a = k_pre[row + i] - s.turning_mean[of_mean],
                     b = k_pre[row + i + 24] - s.turning_mean[of_mean + 24];
        in_frames[row + i] = static_cast<float>(1.5 * (a * std::cos(angle) - b * std::sin(angle)));
        in_frames[row + i + 24] =
            static_cast<float>(1.5 * (b * std::cos(angle) + a * std::sin(angle)));
      }
    }
  }
  for (const auto& [a, b] : {std::pair<int64_t, int64_t>{0, 0}, {5, 300}, {24, 31}, {383, 100}}) {
    EXPECT_NEAR(s.joint.k_block.covariance[of_group + a * kWidth + b],
                CovarianceOf(in_frames, 4, kWidth + a, kWidth + b), 1e-4);
  }
}

// Chunks of several slices, the rest of one and one row add up to the moments of all.
TEST(JointMomentSumsTest, SmallDeviationsBesideLargeMeansAreWhatTheyAre) {
  const std::vector<int> sizes = {700, 1, 300};
  ThreadPool pool(2);
  JointMomentSums sums(kTwoGroups, /*n_pairs=*/0, /*half=*/0, &pool);
  sums.BeginSequence({}, false);
  std::vector<float> all;
  for (const int n : sizes) {
    std::vector<float> rows = DrawJointRows(n, n);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<float>(300 * std::sin(static_cast<double>(i % kStride)) +
                                   0.05 * rows[i] + 0.02 * static_cast<double>(all.size() > i));
    }
    std::vector<int> positions(n);
    std::iota(positions.begin(), positions.end(), 100);
    for (int l = 0; l < 2; ++l) {
      sums.Observe(
          {l, n, positions.data(), nullptr, nullptr, rows.data(), rows.data(), rows.data()});
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  CalibrationStatistics s = MakeStatistics(kTwoGroups);
  sums.Finish(&s);
  for (const auto& [a, b] : {std::pair<int64_t, int64_t>{0, 0}, {300, 300}, {5, 300}, {383, 100}}) {
    const int64_t at = (1 * 2 + 1) * kWidth * kWidth + a * kWidth + b;
    EXPECT_NEAR(s.joint.k.covariance[at], CovarianceOf(all, 0, kWidth + a, kWidth + b), 1e-5);
  }
}

class FisherSumsTest : public ::testing::Test {
 protected:
  void Add(FisherSums* sums, const std::vector<float>& rows, bool is_held_back) {
    const auto n_tokens = std::ssize(rows) / kStride;
    for (int l = 0; l < 2; ++l) {
      const float *g = rows.data(), *r = rows_.data();
      sums->Add({l, n_tokens, g, g, g, r, r, r}, shift_, means_, is_held_back);
    }
    sums->CountTokens(n_tokens, is_held_back);
  }
  ThreadPool pool_{2};
  const std::vector<float> rows_ = DrawJointRows(30, 9);  // whose gradients are added
  PositionShift shift_{5, std::vector<double>(24, 0.2)};
  TurningMeans means_{kTwoGroups, /*n_pairs=*/8, /*half=*/24};
};

TEST_F(FisherSumsTest, IsHalfTheSumOfProductsPerTokenAndAddsUp) {
  const std::vector<float> a = DrawJointRows(12, 1), b = DrawJointRows(30, 2);
  CalibrationStatistics of_both = MakeStatistics(kTwoGroups), apart = MakeStatistics(kTwoGroups);
  FisherSums both(kTwoGroups, 8, &pool_), each(kTwoGroups, 8, &pool_);
  Add(&both, a, false);
  Add(&both, b, false);
  ASSERT_TRUE(both.Finish(means_, &of_both).ok());
  Add(&each, a, false);
  Add(&each, b, true);
  ASSERT_TRUE(each.Finish(means_, &apart).ok());
  EXPECT_EQ(of_both.joint.n_tokens, 42);
  EXPECT_EQ(of_both.held_back.n_tokens, 0);
  EXPECT_EQ(of_both.held_back.v.fisher, MakeStatistics(kTwoGroups).held_back.v.fisher);
  EXPECT_EQ(apart.held_back.n_tokens, 30);
  for (size_t i = 0; i < of_both.joint.v.fisher.size(); i += 97) {
    for (JointMoments JointStatistics::*kind :
         {&JointStatistics::k, &JointStatistics::k_pre, &JointStatistics::v}) {
      const double sum = 12 * double{(apart.joint.*kind).fisher[i]} +
                         30 * double{(apart.held_back.*kind).fisher[i]};
      ASSERT_NEAR((of_both.joint.*kind).fisher[i], sum / 42, 1e-5);
    }
  }
  const int64_t at = (0 * 2 + 1) * kWidth * kWidth + 3 * kWidth + 200;
  EXPECT_NEAR(apart.joint.v.fisher[at], SumOfProducts(a, 4, kWidth + 3, kWidth + 200) / 24, 1e-4);
  std::vector<float> turned = a;
  shift_.Apply(12 * 16, 48, turned.data());
  EXPECT_NEAR(apart.joint.k.fisher[at], SumOfProducts(turned, 4, kWidth + 3, kWidth + 200) / 24,
              1e-4);
}

TEST_F(FisherSumsTest, GradientsThroughAllQueriesHaveSumsOfTheirOwn) {
  const std::vector<float> far = DrawJointRows(12, 1);
  std::vector<float> all = far;
  for (float& x : all) x *= 2;
  FisherSums sums(kTwoGroups, 8, &pool_);
  for (const bool is_held_back : {false, true}) {
    for (int l = 0; l < 2; ++l) {
      const float *g = far.data(), *r = rows_.data();
      RowGradients gradients = {l, 12, g, g, g, r, r, r};
      gradients.through_all = {all.data(), all.data(), all.data()};
      sums.Add(gradients, shift_, means_, is_held_back);
    }
    sums.CountTokens(12, is_held_back);
  }
  CalibrationStatistics statistics = MakeStatistics(kTwoGroups);
  ASSERT_TRUE(sums.Finish(means_, &statistics).ok());
  EXPECT_EQ(statistics.through_all.n_tokens, 12);
  const int64_t at = (0 * 2 + 1) * kWidth * kWidth + 3 * kWidth + 200;
  EXPECT_NEAR(statistics.joint.v.fisher[at], SumOfProducts(far, 4, kWidth + 3, kWidth + 200) / 24,
              1e-4);
  for (const KeyRows rows : kAllKeyRows) {
    const JointMoments& of_far = statistics.joint.keys(rows);
    const JointMoments& of_all = statistics.through_all.keys(rows);
    for (size_t i = 0; i < of_far.fisher.size(); i += 97) {
      ASSERT_NEAR(of_all.fisher[i], 4 * of_far.fisher[i], 1e-4);
      ASSERT_NEAR(of_all.weighed_covariance[i], of_far.weighed_covariance[i], 1e-4);
    }
  }
  EXPECT_NEAR(statistics.through_all.v.fisher[at], 4 * statistics.joint.v.fisher[at], 1e-4);
}

TEST_F(FisherSumsTest, RowsCountByTheSquaresOfTheirGradients) {
  const std::vector<float> a = DrawJointRows(12, 1), b = DrawJointRows(30, 2);
  CalibrationStatistics statistics = MakeStatistics(kTwoGroups);
  FisherSums sums(kTwoGroups, 8, &pool_);
  Add(&sums, a, false);
  Add(&sums, b, false);
  ASSERT_TRUE(sums.Finish(means_, &statistics).ok());
  double weights = 0, mean = 0, of_other = 0, product = 0;  // of the second group
  for (const std::vector<float>* gradients : {&a, &b}) {
    for (int64_t t = 4; t * kStride < std::ssize(*gradients); ++t) {
      double weight = 0;
      for (int64_t i = kWidth; i < 2 * kWidth; ++i) {
        weight += std::pow((*gradients)[t * kStride + i], 2);
      }
      const float* const row = &rows_[t * kStride + kWidth];
      weights += weight;
      mean += weight * row[3];
      of_other += weight * row[200];
      product += weight * row[3] * row[200];
    }
  }
  const JointMoments& v = statistics.joint.v;
  EXPECT_NEAR(v.weighed_mean[(1 * 2 + 1) * kWidth + 3], mean / weights, 1e-4);
  const int64_t first = (1 * 2 + 1) * kWidth * kWidth;
  const double covariance = product / weights - mean / weights * of_other / weights;
  EXPECT_NEAR(v.weighed_covariance[first + 3 * kWidth + 200], covariance, 1e-4);
  EXPECT_EQ(v.weighed_covariance[first + 3 * kWidth + 200],
            v.weighed_covariance[first + 200 * kWidth + 3]);
}

TEST_F(FisherSumsTest, KeysInFramesAndTheirGradientsTurnAlike) {
  const std::vector<float> gradients = DrawJointRows(30, 2), first_keys = DrawJointRows(5, 6);
  CalibrationStatistics statistics = MakeStatistics(kTwoGroups);
  FisherSums sums(kTwoGroups, 8, &pool_);
  means_.See(1, first_keys.data(), 5);
  Add(&sums, gradients, false);
  ASSERT_TRUE(sums.Finish(means_, &statistics).ok());
  std::vector<int> positions(30);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> rows(rows_.size()), turned(rows_.size());
  shift_.TurnInFrames({positions, 16, 48, rows_.data(), means_.of(1)}, rows.data());
  shift_.TurnGradientsInFrames({positions, 16, 48, gradients.data()}, turned.data());
  double weights = 0, mean = 0;
  for (int64_t t = 4; t < 30; ++t) {
    double weight = 0;
    for (int64_t i = 0; i < kWidth; ++i) weight += std::pow(turned[t * kStride + i], 2);
    weights += weight;
    mean += weight * rows[t * kStride + 3];
  }
  const JointMoments& found = statistics.joint.k_block;
  EXPECT_NEAR(found.weighed_mean[1 * 2 * kWidth + 3], mean / weights, 1e-4);
  EXPECT_NEAR(found.fisher[1 * 2 * kWidth * kWidth + 3 * kWidth + 200],
              SumOfProducts(turned, 4, 3, 200) / 60, 1e-4);
}

// A gradient with respect to a row before it turns is A R^T times that with respect to what it
// becomes.
TEST(PositionShiftTest, AGradientInFramesIsThatOfTheTurnedRow) {
  const std::vector<double> frequencies = {1.0, 0.3, 0.01, 0.001};
  const PositionShift shift(500, frequencies, 1.25);
  Random random(4);
  const std::vector<int> positions = {0, 3, 700};
  std::vector<float> row(3 * 10), change(3 * 10), gradient(3 * 10);
  for (std::vector<float>* numbers : {&row, &change, &gradient}) {
    for (float& x : *numbers) x = static_cast<float>(random.Normal());
  }
  std::vector<float> changed = row, before(30), behind(30), of_turned(30);
  for (int i = 0; i < 30; ++i) changed[i] += change[i];
  shift.TurnInFrames({positions, 1, 10, row.data()}, before.data());
  shift.TurnInFrames({positions, 1, 10, changed.data()}, behind.data());
  shift.TurnGradientsInFrames({positions, 1, 10, gradient.data()}, of_turned.data());
  for (int t = 0; t < 3; ++t) {
    double of_rows = 0, of_turned_rows = 0;
    for (int i = 10 * t; i < 10 * t + 8; ++i) {  // the last two channels do not turn
      of_rows += double{gradient[i]} * change[i];
      of_turned_rows += double{of_turned[i]} * (behind[i] - before[i]);
    }
    EXPECT_NEAR(of_turned_rows, of_rows, 1e-4);
  }
}

TEST_F(FisherSumsTest, GradientsThatAreNotFiniteAreRefusedWithTheirLayer) {
  CalibrationStatistics statistics = MakeStatistics(kTwoGroups);
  FisherSums sums(kTwoGroups, 8, &pool_);
  std::vector<float> rows = DrawJointRows(12, 1);
  Add(&sums, rows, false);
  rows[10 * kStride + 3] = std::numeric_limits<float>::quiet_NaN();
  const float *g = rows.data(), *r = rows_.data();
  sums.Add({1, 12, g, g, g, r, r, r}, shift_, means_, false);
  EXPECT_THAT(MessageOf(sums.Finish(means_, &statistics)),
              ::testing::HasSubstr("layer 1: gradients are not finite"));
}

}  // namespace
}  // namespace kvlathe
