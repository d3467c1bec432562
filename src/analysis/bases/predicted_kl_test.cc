#include "analysis/bases/predicted_kl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/bases/lathe.h"
#include "analysis/ranks/bit_ladder.h"
#include "base/random.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kHeadDim = 32, kLayers = 2, kKvHeads = 2, kWidth = kKvHeads * kHeadDim;
constexpr int kTokens = 4000;

// Moments of rows that calibration could have seen, drawn anew for each kind.
void DrawMoments(Random* random, JointMoments* moments) {
  for (int l = 0; l < kLayers; ++l) {
    const auto draw = [&](std::vector<float>* square, double decay) {
      for (int r = 0; r < 2 * kWidth; ++r) {
        std::vector<double> row(kWidth);
        for (int i = 0; i < kWidth; ++i) row[i] = random->Normal() * std::exp(-decay * i);
        for (int i = 0; i < kWidth; ++i) {
          for (int j = 0; j < kWidth; ++j) {
            (*square)[(l * kWidth + i) * kWidth + j] +=
                static_cast<float>(row[i] * row[j] / (2 * kWidth));
          }
        }
      }
    };
    draw(&moments->covariance, 0.04);
    moments->weighed_covariance = moments->covariance;
    draw(&moments->fisher, 0.02);
  }
}

CalibrationStatistics DrawStatistics() {
  Random random(3);
  CalibrationStatistics statistics = MakeStatistics({kLayers, kKvHeads, kKvHeads, kHeadDim});
  statistics.joint.n_tokens = 100;
  for (JointMoments* moments :
       {&statistics.joint.k, &statistics.joint.k_pre, &statistics.joint.v}) {
    DrawMoments(&random, moments);
  }
  return statistics;
}

std::vector<HeadRanks> RanksOf(const BasisAnalysis& analysis) {
  BitSplit bits;
  bits.channels = {0, 0, 0, 16, 16, 0};  // of 3 and 2 bits
  const int n_heads = kLayers * analysis.shape.n_kv_heads;
  return std::vector<HeadRanks>(n_heads, {32, 32, {.middle = {bits, bits}}});
}

// The text that maps were made from loses what the analysis says that cuts and noise cost.
TEST(LossPredictorTest, IsTheLossByWhichBitsAreShared) {
  const CalibrationStatistics statistics = DrawStatistics();
  for (const bool joins : {false, true}) {
    for (const bool is_latent : {false, true}) {
      const BasisAnalysis analysis =
          *AnalyseLathe({&statistics,
                         {},
                         {},
                         {.keys_before_rope = is_latent, .joint_channels = joins ? 256 : 0}});
      const LossPredictor predictor(analysis, statistics.joint, statistics.shape, nullptr);
      const PredictedLosses losses = predictor.At(RanksOf(analysis), {StoredUnit::kChannel});
      const double sum = std::accumulate(losses.keys.begin(), losses.keys.end(), 0.0) +
                         std::accumulate(losses.values.begin(), losses.values.end(), 0.0);
      double expected = 0;
      for (size_t h = 0; h < analysis.noise.size(); ++h) {
        const auto loss_of = [&](const std::vector<double>& s, const std::vector<double>& noise) {
          const auto noise_of = [&](int begin, int end) {
            return std::accumulate(noise.begin() + begin, noise.begin() + end, 0.0);
          };
          const double cut = std::inner_product(s.begin() + 32, s.end(), s.begin() + 32, 0.0);
          return kCoherentFactor * cut + UnitCost(3) * noise_of(0, 16) +
                 UnitCost(2) * noise_of(16, 32);
        };
        expected += loss_of(analysis.spectra[h].qk, analysis.noise[h].qk) +
                    loss_of(analysis.spectra[h].v, analysis.noise[h].v);
      }
      // The ridge of F is in what bits are shared by, and in no prediction.
      EXPECT_LT(sum, expected);
      EXPECT_GT(sum, 0.85 * expected);
      EXPECT_EQ(losses.open_rows, 0);
      EXPECT_GE(losses.kl(), sum);
    }
  }
}

// What codes read a stored row as, with as many bits as RanksOf gives.
std::vector<double> ReadBack(const std::vector<double>& z, StoredUnit unit) {
  double scale = 1;
  if (unit == StoredUnit::kToken) {
    scale = std::sqrt(std::inner_product(z.begin(), z.end(), z.begin(), 0.0) / z.size());
  }
  std::vector<double> read;
  for (size_t r = 0; r < z.size(); ++r) {
    double nearest = 1e9;
    for (const float c : UnitCentroids(r < 16 ? 3 : 2, unit)) {
      if (std::abs(z[r] - scale * c) < std::abs(z[r] - nearest)) nearest = scale * c;
    }
    read.push_back(nearest);
  }
  return read;
}

// The root of what codes of channel r cost over what those lose that ReadBack makes of a unit
// deviation, each for itself.
double CostFactor(int r, StoredUnit unit) {
  const int bits = r < 16 ? 3 : 2;
  const double lost = unit == StoredUnit::kChannel ? UnitLoss(bits, unit)
                      : bits == 3                  ? 0.0386
                                                   : 0.1276;
  return std::sqrt(UnitCost(bits, unit) / lost);
}

// Rows of values of layer 0, which have other sizes and another mean than in the calibration.
// Numbers of channels are of a Student's t of 8 degrees, or tokens have sizes of their own.
std::vector<std::vector<double>> DrawRows(StoredUnit unit) {
  Random random(4);
  std::vector<double> sizes, mean;
  for (int i = 0; i < kWidth; ++i) {
    sizes.push_back(std::exp(0.5 * random.Normal() - 0.03 * i));
    mean.push_back(0.2 * random.Normal());
  }
  std::vector<std::vector<double>> rows(kTokens, std::vector<double>(kWidth));
  for (std::vector<double>& row : rows) {
    double size = std::exp(0.7 * random.Normal());
    if (unit == StoredUnit::kChannel) {  // normal over the root of a mean of 8 squares
      double squares = 0;
      for (int k = 0; k < 8; ++k) squares += std::pow(random.Normal(), 2) / 8;
      size = 1 / std::sqrt(squares * 8 / 6);
    }
    for (int i = 0; i < kWidth; ++i) row[i] = mean[i] + sizes[i] * size * random.Normal();
  }
  return rows;
}

// The moments of layer 0 are those of these rows, whatever weighs them.
void SetMomentsOfLayer0(const std::vector<std::vector<double>>& rows, JointMoments* moments) {
  const auto n = static_cast<double>(rows.size());
  std::vector<double> mean(kWidth);
  for (const std::vector<double>& row : rows) {
    for (int i = 0; i < kWidth; ++i) mean[i] += row[i] / n;
  }
  for (int i = 0; i < kWidth; ++i) {
    moments->mean[i] = moments->weighed_mean[i] = static_cast<float>(mean[i]);
    for (int j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (const std::vector<double>& row : rows) sum += (row[i] - mean[i]) * (row[j] - mean[j]);
      moments->covariance[i * kWidth + j] = moments->weighed_covariance[i * kWidth + j] =
          static_cast<float>(sum / n);
    }
  }
}

// Rows that are coded and read back, against a metric.
TEST(LossPredictorTest, IsWhatRowsOfAnotherTextLose) {
  const CalibrationStatistics statistics = DrawStatistics();
  const BasisAnalysis analysis = *AnalyseLathe({&statistics, {}, {}, {.joint_channels = 256}});
  const ModelBasis basis = CutBasis(analysis, RanksOf(analysis));
  const HeadBasis& head = basis.head(0, 0);
  ASSERT_EQ(head.bits.middle.v.n_channels(), 32);
  for (const StoredUnit unit : {StoredUnit::kChannel, StoredUnit::kToken}) {
    JointStatistics text = statistics.joint;
    const float* const fisher = text.v.fisher.data();
    SetMomentsOfLayer0(DrawRows(unit), &text.v);
    double coded = 0, cut = 0;
    for (const std::vector<double>& row : DrawRows(unit)) {
      std::vector<double> z(head.rank_v), error(kWidth), of_cut(kWidth);
      for (int i = 0; i < kWidth; ++i) {
        for (int r = 0; r < head.rank_v; ++r) {
          z[r] += (row[i] - head.value_offset[i]) * head.value_basis[i * head.rank_v + r];
        }
      }
      const std::vector<double> stored(z.begin(), z.begin() + 32), read = ReadBack(stored, unit);
      for (int i = 0; i < kWidth; ++i) {
        for (int r = 0; r < head.rank_v; ++r) {
          const double back = head.output_basis[r * kWidth + i];
          const double lost = r < 32 ? CostFactor(r, unit) * (z[r] - read[r]) : z[r];
          (r < 32 ? error : of_cut)[i] += lost * back;
        }
      }
      for (int i = 0; i < kWidth; ++i) {
        for (int j = 0; j < kWidth; ++j) {
          coded += error[i] * fisher[i * kWidth + j] * error[j] / kTokens;
          cut += of_cut[i] * fisher[i * kWidth + j] * of_cut[j] / kTokens;
        }
      }
    }
    const LossPredictor predictor(analysis, text, statistics.shape, nullptr);
    const PredictedLosses losses = predictor.At(RanksOf(analysis), {unit});
    EXPECT_NEAR(losses.values[0] / (coded + kCoherentFactor * cut), 1, 0.1)
        << (unit == StoredUnit::kToken ? "scales of tokens" : "scales of calibration");
  }
}

// A deviation that is hundreds of times too small for the rows that come takes up the scale of
// their tokens, whatever the text of the maps said.
TEST(LossPredictorTest, ShowsADeviationThatIsFarTooSmall) {
  const CalibrationStatistics statistics = DrawStatistics();
  BasisAnalysis analysis = *AnalyseLathe({&statistics, {}, {}, {.joint_channels = 256}});
  const auto predicted = [&] {
    const LossPredictor predictor(analysis, statistics.joint, statistics.shape, nullptr);
    return predictor.At(RanksOf(analysis), {StoredUnit::kToken}).kl();
  };
  const double whole = predicted();
  analysis.heads[0].key_deviations[3] /= 300;
  EXPECT_GT(predicted(), 5 * whole);
}

TEST(LossPredictorTest, CodesOfOpenRowsCostMore) {
  const CalibrationStatistics statistics = DrawStatistics();
  const BasisAnalysis analysis = *AnalyseLathe({&statistics, {}, {}, {.joint_channels = 256}});
  const LossPredictor predictor(analysis, statistics.joint, statistics.shape, nullptr);
  const std::vector<HeadRanks> ranks = RanksOf(analysis);
  const double whole = predictor.At(ranks, {StoredUnit::kToken, false}).kl();
  EXPECT_GT(predictor.At(ranks, {StoredUnit::kToken, true}).kl(), whole);
}

// Bits that move to the most attended entries lower the loss; the same bits for all are no classes.
TEST(LossPredictorTest, ClassesOfEntriesCountAsTheirErrorsCost) {
  const CalibrationStatistics statistics = DrawStatistics();
  const BasisAnalysis analysis = *AnalyseLathe({&statistics, {}, {}, {.joint_channels = 256}});
  const LossPredictor predictor(analysis, statistics.joint, statistics.shape, nullptr);
  std::vector<HeadRanks> ranks = RanksOf(analysis);
  const double alike = predictor.At(ranks, {}).kl();
  const BitSplit bits = ranks.front().bits.middle.k, more = {{0, 16, 16, 0, 0, 0}},
                 fewer = {{0, 0, 0, 0, 16, 16}};
  for (HeadRanks& head : ranks) head.bits.most = head.bits.least = {bits, bits};
  EXPECT_NEAR(predictor.At(ranks, {}).kl(), alike, 1e-9 * alike);
  for (HeadRanks& head : ranks) head.bits.most = {more, more};
  const double better = predictor.At(ranks, {}).kl();
  EXPECT_LT(better, alike);
  for (HeadRanks& head : ranks) head.bits.least = {fewer, fewer};
  EXPECT_GT(predictor.At(ranks, {}).kl(), better);
  EXPECT_LT(predictor.At(ranks, {}).kl(), alike);
}

}  // namespace
}  // namespace kvlathe
