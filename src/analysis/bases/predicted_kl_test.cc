#include "analysis/bases/predicted_kl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/bases/lathe.h"
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
    draw(&moments->gram, 0.04);
    moments->weighed_gram = moments->gram;
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
  return std::vector<HeadRanks>(n_heads, {32, 32, bits, bits});
}

// The text that maps were made from loses what the analysis says that cuts and noise cost.
TEST(LossPredictorTest, IsTheLossByWhichBitsAreShared) {
  const CalibrationStatistics statistics = DrawStatistics();
  for (const bool joins : {false, true}) {
    for (const bool is_latent : {false, true}) {
      const BasisAnalysis analysis = *AnalyseLathe(
          {&statistics, {}, {}, {.keys_before_rope = is_latent, .joins_heads = joins}});
      const LossPredictor predictor(analysis, statistics.joint, statistics.shape, nullptr);
      const PredictedLosses losses = predictor.At(RanksOf(analysis));
      double expected = 0;
      for (size_t h = 0; h < analysis.noise.size(); ++h) {
        const auto loss_of = [&](const std::vector<double>& s, const std::vector<double>& noise) {
          const auto sum = [&](int begin, int end) {
            return std::accumulate(noise.begin() + begin, noise.begin() + end, 0.0);
          };
          const double cut = std::inner_product(s.begin() + 32, s.end(), s.begin() + 32, 0.0);
          return cut + UnitLoss(3) * sum(0, 16) + UnitLoss(2) * sum(16, 32);
        };
        expected += loss_of(analysis.spectra[h].qk, analysis.noise[h].qk) +
                    loss_of(analysis.spectra[h].v, analysis.noise[h].v);
      }
      // The ridge of F is in what bits are shared by, and in no prediction.
      EXPECT_LT(losses.kl(), expected);
      EXPECT_GT(losses.kl(), 0.93 * expected);
      EXPECT_NEAR(losses.kl(),
                  std::accumulate(losses.keys.begin(), losses.keys.end(), 0.0) +
                      std::accumulate(losses.values.begin(), losses.values.end(), 0.0),
                  1e-9);
    }
  }
}

// Rows drawn with given moments, coded and read back, against a metric.
TEST(LossPredictorTest, IsWhatRowsOfAnotherTextLose) {
  const CalibrationStatistics statistics = DrawStatistics();
  const BasisAnalysis analysis = *AnalyseLathe({&statistics, {}, {}, {.joins_heads = true}});
  const ModelBasis basis = CutBasis(analysis, RanksOf(analysis));
  JointStatistics text = statistics.joint;
  Random random(4);
  // Values of layer 0 have other sizes and another mean than in the calibration.
  std::vector<double> sizes, mean;
  for (int i = 0; i < kWidth; ++i) {
    sizes.push_back(std::exp(0.5 * random.Normal() - 0.03 * i));
    mean.push_back(0.2 * random.Normal());
  }
  const HeadBasis& head = basis.head(0, 0);
  const float* const fisher = text.v.fisher.data();
  std::fill_n(text.v.weighed_gram.begin(), kWidth * kWidth, 0.0f);
  double lost = 0;
  for (int t = 0; t < kTokens; ++t) {
    // A Student's t of 8 degrees: normal over the root of a mean of 8 squares.
    double squares = 0;
    for (int k = 0; k < 8; ++k) squares += std::pow(random.Normal(), 2) / 8;
    std::vector<double> row(kWidth), read(kWidth);
    for (int i = 0; i < kWidth; ++i) {
      row[i] = mean[i] + sizes[i] * random.Normal() / std::sqrt(squares * 8 / 6);
    }
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < kWidth; ++j) {
        text.v.weighed_gram[i * kWidth + j] += static_cast<float>(row[i] * row[j] / kTokens);
      }
    }
    ASSERT_EQ(head.v_bits.n_channels(), 32);
    for (int r = 0; r < 32; ++r) {
      double z = 0;
      for (int i = 0; i < kWidth; ++i) {
        z += (row[i] - head.value_offset[i]) * head.value_basis[i * head.rank_v + r];
      }
      const int bits = r < 16 ? 3 : 2;
      double nearest = 1e9;
      for (const float c : UnitCentroids(bits)) {
        if (std::abs(z - c) < std::abs(z - nearest)) nearest = c;
      }
      for (int i = 0; i < kWidth; ++i) {
        read[i] += nearest * head.output_basis[r * kWidth + i];
      }
    }
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < kWidth; ++j) {
        const auto error = [&](int k) { return row[k] - head.value_offset[k] - read[k]; };
        lost += error(i) * fisher[i * kWidth + j] * error(j) / kTokens;
      }
    }
  }
  for (int i = 0; i < kWidth; ++i) text.v.weighed_mean[i] = static_cast<float>(mean[i]);
  const PredictedLosses losses =
      LossPredictor(analysis, text, statistics.shape, nullptr).At(RanksOf(analysis));
  EXPECT_NEAR(losses.values[0] / lost, 1, 0.1);
}

}  // namespace
}  // namespace kvlathe
