#include "analysis/bases/fdc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "analysis/bases/fdc_reference.h"
#include "analysis/bases/report.h"
#include "analysis/statistics/spectrum.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kHeadDim = 48, kHiddenDim = 80, kLayers = 2, kKvHeads = 3, kGroup = 2, kTokens = 90;

// Rows whose spectrum decays like exp(-rate i), in a random basis.
Matrix RandomRows(Random* random, int n_rows, double decay, double scale) {
  Matrix mixing(kHeadDim, std::vector<double>(kHeadDim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  Matrix rows(n_rows, std::vector<double>(kHeadDim, 0.0));
  for (auto& row : rows) {
    for (int i = 0; i < kHeadDim; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i) * scale;
      for (int j = 0; j < kHeadDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

// The rows of one KV head, from which both sides start.
struct HeadRows {
  Matrix q;  // [kGroup * kTokens, kHeadDim]
  Matrix k;  // [kTokens, kHeadDim]
  Matrix w;  // W_V,h [kHiddenDim, kHeadDim]
  Matrix v;  // [kTokens, kHeadDim]
};

void AddGram(const Matrix& rows, double scale, double* gram) {
  for (const auto& row : rows) {
    for (int i = 0; i < kHeadDim; ++i) {
      for (int j = 0; j < kHeadDim; ++j) gram[i * kHeadDim + j] += scale * row[i] * row[j];
    }
  }
}

class FdcTest : public ::testing::Test {
 protected:
  FdcTest() {
    Random random(7);
    statistics_ = MakeStatistics({kLayers, kKvHeads * kGroup, kKvHeads, kHeadDim});
    statistics_.n_rows = kTokens;
    for (int h = 0; h < kLayers * kKvHeads; ++h) {
      HeadRows head;
      head.q = RandomRows(&random, kGroup * kTokens, 0.02 + 0.02 * h, 1.0);
      head.k = RandomRows(&random, kTokens, 0.08 - 0.01 * h, 1.7);
      head.w = RandomRows(&random, kHiddenDim, 0.01 + 0.015 * h, 0.05);
      constexpr int kSquare = kHeadDim * kHeadDim;
      std::vector<double> q(kSquare), k(kSquare), w(kSquare);
      AddGram(head.q, 1.0 / kTokens, q.data());
      AddGram(head.k, 1.0 / kTokens, k.data());
      AddGram(head.w, 1.0, w.data());
      std::copy(q.begin(), q.end(), statistics_.q_post.covariance.begin() + h * kSquare);
      std::copy(k.begin(), k.end(), statistics_.k_post.covariance.begin() + h * kSquare);
      value_grams_.push_back(w);
      head.v = RandomRows(&random, kTokens, 0.03 + 0.01 * h, 0.6);
      std::vector<double> v(kSquare);
      AddGram(head.v, 1.0 / kTokens, v.data());
      std::copy(v.begin(), v.end(), statistics_.v.covariance.begin() + h * kSquare);
      Matrix stacked = head.q;
      stacked.insert(stacked.end(), head.k.begin(), head.k.end());
      reference_qk_.push_back(reference::DecomposeStacked(stacked));
      reference_v_.push_back(reference::DecomposeStacked(head.w));
      rows_.push_back(std::move(head));
    }
    inputs_ = {&statistics_, value_grams_};
    inputs_.options.is_whitened = false;
    analysis_ = *AnalyseFdc(inputs_);
  }

  RankAllocation Allocate(const RankRequest& request) const {
    return *kFdcMethod.allocate(analysis_, request);
  }
  RankAllocation AllocateRate(double rate, int round = 16, bool uniform = false) const {
    RankRequest request;
    request.value = rate;
    request.round = round;
    request.uniform = uniform;
    return Allocate(request);
  }

  CalibrationStatistics statistics_;
  std::vector<std::vector<double>> value_grams_;
  BasisInputs inputs_;
  std::vector<HeadRows> rows_;
  std::vector<reference::Svd> reference_qk_, reference_v_;
  BasisAnalysis analysis_;
};

TEST_F(FdcTest, SingularValuesAreThoseOfTheStackedMatrix) {
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      const double qk = reference_qk_[h].singular_values[i] / std::sqrt(kTokens);
      EXPECT_NEAR(analysis_.spectra[h].qk[i], qk, 1e-5 * analysis_.spectra[h].qk[0]);
      EXPECT_NEAR(analysis_.spectra[h].v[i], reference_v_[h].singular_values[i],
                  1e-7 * analysis_.spectra[h].v[0]);
    }
  }
}

TEST_F(FdcTest, RanksEqualThoseOfABruteForceScanOfEta) {
  std::vector<std::vector<double>> pairs;
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    pairs.push_back(reference_qk_[h].singular_values);
    pairs.push_back(reference_v_[h].singular_values);
  }
  for (const int round : {8, 16}) {
    for (double rate = 0; rate < 0.9; rate += 0.0417) {
      const reference::Choice expected = reference::ChooseRanks(pairs, rate, round);
      const RankAllocation found = AllocateRate(rate, round);
      EXPECT_NEAR(found.removal_rate, expected.rate, 1e-12) << rate;
      for (int h = 0; h < kLayers * kKvHeads; ++h) {
        EXPECT_EQ(found.ranks[h].rank_k, expected.ranks[2 * h]) << rate << " round " << round;
        EXPECT_EQ(found.ranks[h].rank_v, expected.ranks[2 * h + 1]) << rate << " round " << round;
        // The eta that is reported gives these ranks by the definition.
        if (found.eta > 0 && expected.rate > 0) {
          EXPECT_EQ(reference::RankOf(pairs[2 * h], found.eta + 1e-5, round),
                    found.ranks[h].rank_k);
        }
      }
    }
  }
}

// q R R^T k^T with the first r reference vectors.
double ProjectedScore(const std::vector<double>& q, const std::vector<double>& k,
                      const reference::Svd& svd, int rank) {
  double score = 0;
  for (int r = 0; r < rank; ++r) {
    double q_r = 0, k_r = 0;
    for (int i = 0; i < kHeadDim; ++i) {
      q_r += q[i] * svd.right[r][i];
      k_r += k[i] * svd.right[r][i];
    }
    score += q_r * k_r;
  }
  return score;
}

std::vector<double> TimesColumns(const std::vector<double>& x, const std::vector<float>& matrix,
                                 int n_columns) {
  std::vector<double> y(n_columns, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (int j = 0; j < n_columns; ++j) y[j] += x[i] * matrix[i * n_columns + j];
  }
  return y;
}

TEST_F(FdcTest, CompressedScoresAreThoseOfTheProjectedRows) {
  const RankAllocation allocation = AllocateRate(0.5);
  const ModelBasis basis = CutBasis(analysis_, allocation.ranks);
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    const HeadBasis& head = basis.head(h / kKvHeads, h % kKvHeads);
    ASSERT_EQ(head.rank_k, allocation.ranks[h].rank_k);
    for (int t = 0; t < 10; ++t) {
      const auto q = TimesColumns(rows_[h].q[t], head.query_basis, head.rank_k);
      const auto k = TimesColumns(rows_[h].k[t], head.key_basis, head.rank_k);
      double score = 0;
      for (int r = 0; r < head.rank_k; ++r) score += q[r] * k[r];
      const double expected =
          ProjectedScore(rows_[h].q[t], rows_[h].k[t], reference_qk_[h], head.rank_k);
      EXPECT_NEAR(score, expected, 1e-3 * (1 + std::abs(expected)));
    }
  }
}

TEST_F(FdcTest, FoldedValueWeightsAreTheBestLowRankApproximation) {
  const ModelBasis basis = CutBasis(analysis_, AllocateRate(0.5).ranks);
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    const HeadBasis& head = basis.heads[h];
    double error = 0, expected = 0;
    for (const auto& row : rows_[h].w) {
      const auto latent = TimesColumns(row, head.value_basis, head.rank_v);
      const auto restored = TimesColumns(latent, head.output_basis, kHeadDim);
      for (int i = 0; i < kHeadDim; ++i) error += std::pow(row[i] - restored[i], 2);
    }
    for (int i = head.rank_v; i < kHeadDim; ++i) {
      expected += std::pow(reference_v_[h].singular_values[i], 2);  // Eckart-Young
    }
    EXPECT_NEAR(error, expected, 1e-5 * (1 + expected));
  }
}

TEST_F(FdcTest, WhitenedValuesLoseLeastOfTheirRows) {
  inputs_.options.is_whitened = true;
  const BasisAnalysis whitened = *AnalyseFdc(inputs_);
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    const reference::Svd svd = reference::DecomposeStacked(rows_[h].v);
    double error = 0, expected = 0;
    constexpr int kRank = 24;
    const std::vector<HeadRanks> ranks(kLayers * kKvHeads, {kHeadDim, kRank});
    const ModelBasis basis = CutBasis(whitened, ranks);
    for (const auto& row : rows_[h].v) {
      const auto latent = TimesColumns(row, basis.heads[h].value_basis, kRank);
      const auto restored = TimesColumns(latent, basis.heads[h].output_basis, kHeadDim);
      for (int i = 0; i < kHeadDim; ++i) error += std::pow(row[i] - restored[i], 2);
    }
    for (int i = kRank; i < kHeadDim; ++i) expected += std::pow(svd.singular_values[i], 2);
    EXPECT_NEAR(error, expected, 1e-4 * (1 + expected)) << h;
    // Keys are those of the other kind.
    EXPECT_EQ(whitened.heads[h].key_basis, analysis_.heads[h].key_basis);
  }
}

TEST_F(FdcTest, FullRankBasesAreOrthogonal) {
  const RankAllocation allocation = AllocateRate(0);
  EXPECT_EQ(allocation.removal_rate, 0);
  const ModelBasis basis = CutBasis(analysis_, allocation.ranks);
  for (const HeadBasis& head : basis.heads) {
    EXPECT_EQ(head.rank_k, kHeadDim);
    EXPECT_EQ(head.rank_v, kHeadDim);
    EXPECT_EQ(head.key_basis, head.query_basis);
    for (int i = 0; i < kHeadDim; ++i) {
      for (int j = 0; j < kHeadDim; ++j) {
        double product = 0, folded = 0;
        for (int k = 0; k < kHeadDim; ++k) {
          product += double{head.query_basis[i * kHeadDim + k]} * head.key_basis[j * kHeadDim + k];
          folded +=
              double{head.value_basis[i * kHeadDim + k]} * head.output_basis[k * kHeadDim + j];
        }
        EXPECT_NEAR(product, i == j, 1e-6);
        EXPECT_NEAR(folded, i == j, 1e-6);
      }
    }
  }
}

TEST_F(FdcTest, DamagedInputsAreNamedByLayerAndHead) {
  statistics_.k_post.covariance[(1 * kKvHeads + 2) * kHeadDim * kHeadDim] = NAN;
  const auto analysis = AnalyseFdc(inputs_);
  EXPECT_EQ(analysis.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(MessageOf(analysis.status()),
            "layer 1, KV head 2: the statistics of Q and K are not finite");
}

TEST_F(FdcTest, ReportAgreesWithTheAllocation) {
  const RankAllocation allocation = AllocateRate(0.4);
  const BasisReport report = ReportBasis(analysis_, allocation);
  EXPECT_NEAR(report.removal_rate, 1 - (report.mean_rank_k + report.mean_rank_v) / (2 * kHeadDim),
              1e-12);
  EXPECT_GT(report.cv_largest_qk, 0);
  const nlohmann::json json = BasisReportJson(analysis_, allocation);
  EXPECT_EQ(json["heads"].size(), size_t{kLayers * kKvHeads});
  EXPECT_EQ(json["heads"][4]["layer"], 1);
  EXPECT_EQ(json["heads"][4]["kv_head"], 1);
  EXPECT_EQ(json["heads"][4]["rank_k"], allocation.ranks[4].rank_k);
}

TEST_F(FdcTest, SubspacesOverlapFullyWithThemselvesAndNotWithTheirComplement) {
  EXPECT_NEAR(MeanKeyOverlap(analysis_, analysis_, 16), 1.0, 1e-6);
  const std::vector<float>& basis = analysis_.heads[0].key_basis;
  std::vector<float> reversed(basis.size());
  for (int i = 0; i < kHeadDim; ++i) {
    for (int j = 0; j < kHeadDim; ++j) {
      reversed[i * kHeadDim + j] = basis[i * kHeadDim + kHeadDim - 1 - j];
    }
  }
  EXPECT_NEAR(SubspaceOverlap(basis, reversed, kHeadDim, kHeadDim / 2), 0.0, 1e-6);
  EXPECT_NEAR(SubspaceOverlap(basis, reversed, kHeadDim, kHeadDim / 4 * 3), 2.0 / 3, 1e-6);
}

}  // namespace
}  // namespace kvlathe
