#include "analysis/bases/eigen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "analysis/bases/fdc_reference.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kHeadDim = 32, kLayers = 2, kKvHeads = 3, kTokens = 60;

// Rows with a mean, which fall off along directions of their own.
Matrix RandomRows(Random* random, double decay, double scale, double mean) {
  Matrix mixing(kHeadDim, std::vector<double>(kHeadDim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  std::vector<double> centre(kHeadDim);
  for (double& x : centre) x = mean * random->Normal();
  Matrix rows(kTokens, centre);
  for (auto& row : rows) {
    for (int i = 0; i < kHeadDim; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i) * scale;
      for (int j = 0; j < kHeadDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

// The mean and the covariance about it of one head's rows.
void SetMoments(const Matrix& rows, int64_t head_idx, HeadMoments* moments) {
  float* const mean = moments->mean.data() + head_idx * kHeadDim;
  float* const covariance = moments->covariance.data() + head_idx * kHeadDim * kHeadDim;
  std::vector<double> m(kHeadDim);
  for (const auto& row : rows) {
    for (int i = 0; i < kHeadDim; ++i) m[i] += row[i] / kTokens;
  }
  for (int i = 0; i < kHeadDim; ++i) {
    mean[i] = static_cast<float>(m[i]);
    for (int j = 0; j < kHeadDim; ++j) {
      double sum = 0;
      for (const auto& row : rows) sum += (row[i] - m[i]) * (row[j] - m[j]);
      covariance[i * kHeadDim + j] = static_cast<float>(sum / kTokens);
    }
  }
}

// The sum of squares that rows lose where the first `rank` columns of a map and its way back stand
// in for them.
double LossOf(const Matrix& rows, const std::vector<float>& there, const std::vector<float>& back,
              int rank) {
  double loss = 0;
  for (const auto& row : rows) {
    std::vector<double> lost = row;
    for (int r = 0; r < rank; ++r) {
      double latent = 0;
      for (int i = 0; i < kHeadDim; ++i) latent += row[i] * there[i * kHeadDim + r];
      for (int i = 0; i < kHeadDim; ++i) lost[i] -= latent * back[r * kHeadDim + i];
    }
    for (const double x : lost) loss += x * x;
  }
  return loss;
}

// What no map of this rank can avoid.
double LeastLoss(const std::vector<double>& singular_values, int rank) {
  double loss = 0;
  for (int r = rank; r < kHeadDim; ++r) loss += singular_values[r] * singular_values[r];
  return loss;
}

class EigenTest : public ::testing::Test {
 protected:
  EigenTest() {
    Random random(7);
    statistics_ = MakeStatistics({kLayers, kKvHeads, kKvHeads, kHeadDim});
    statistics_.n_rows = kTokens;
    for (int layer = 0; layer < kLayers; ++layer) {
      Matrix& stacked = keys_.emplace_back();
      for (int h = 0; h < kKvHeads; ++h) {
        const Matrix k = RandomRows(&random, 0.08 + 0.03 * h, 0.7 + h, 1.5);
        SetMoments(k, layer * kKvHeads + h, &statistics_.k_pre);
        stacked.insert(stacked.end(), k.begin(), k.end());
        values_.push_back(RandomRows(&random, 0.05, 0.4, 0.2));
        SetMoments(values_.back(), layer * kKvHeads + h, &statistics_.v);
      }
      reference_k_.push_back(reference::DecomposeStacked(stacked));
    }
    for (const Matrix& v : values_) reference_v_.push_back(reference::DecomposeStacked(v));
    analysis_ = *AnalyseEigen({&statistics_});
  }

  CalibrationStatistics statistics_;
  std::vector<Matrix> keys_, values_;  // of layers, stacked; of heads
  std::vector<reference::Svd> reference_k_, reference_v_;
  BasisAnalysis analysis_;
};

TEST_F(EigenTest, SpectraAreThoseOfTheStackedRows) {
  ASSERT_EQ(analysis_.spectra.size(), values_.size());
  for (size_t h = 0; h < values_.size(); ++h) {
    const auto& k = reference_k_[h / kKvHeads].singular_values;
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(analysis_.spectra[h].qk[i] * std::sqrt(kTokens * kKvHeads), k[i], 1e-5 * k[0]);
      EXPECT_NEAR(analysis_.spectra[h].v[i] * std::sqrt(kTokens),
                  reference_v_[h].singular_values[i], 1e-5 * reference_v_[h].singular_values[0]);
    }
  }
}

TEST_F(EigenTest, NoMapOfTheRankLosesLessOfALayersKeysOrAHeadsValues) {
  for (size_t h = 0; h < values_.size(); ++h) {
    const HeadAnalysis& head = analysis_.heads[h];
    const size_t layer = h / kKvHeads;
    for (const int rank : {1, 8, 16, 31}) {
      const double k = LeastLoss(reference_k_[layer].singular_values, rank);
      EXPECT_NEAR(LossOf(keys_[layer], head.key_basis, head.key_way_back, rank), k, 1e-3 * k);
      const double v = LeastLoss(reference_v_[h].singular_values, rank);
      EXPECT_NEAR(LossOf(values_[h], head.value_basis, head.output_basis, rank), v, 1e-3 * v);
    }
  }
}

TEST_F(EigenTest, HeadsOfALayerShareTheBasisOfTheirKeys) {
  EXPECT_EQ(analysis_.keys, Keys(LatentKeys{}));
  const RankAllocation allocation = *AllocateEigen(analysis_, {.value = 0.5});
  for (size_t h = 0; h < values_.size(); ++h) {
    const size_t first = h / kKvHeads * kKvHeads;
    EXPECT_EQ(analysis_.heads[h].key_basis, analysis_.heads[first].key_basis);
    EXPECT_EQ(allocation.ranks[h].rank_k, allocation.ranks[first].rank_k);
    EXPECT_TRUE(analysis_.heads[h].query_basis.empty());
  }
  EXPECT_NE(analysis_.heads[0].value_basis, analysis_.heads[1].value_basis);
  EXPECT_NE(analysis_.heads[0].key_basis, analysis_.heads[kKvHeads].key_basis);
}

TEST_F(EigenTest, RefusesStatisticsThatAreNotFinite) {
  statistics_.k_pre.mean[(kKvHeads + 1) * kHeadDim] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(AnalyseEigen({&statistics_}).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
