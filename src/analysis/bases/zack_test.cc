#include "analysis/bases/zack.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analysis/bases/fdc.h"
#include "analysis/bases/fdc_reference.h"
#include "analysis/statistics/spectrum.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kHeadDim = 32, kHiddenDim = 40, kLayers = 2, kKvHeads = 2, kGroup = 3, kTokens = 70;
constexpr int kFirstTokens = 10;  // of them, at the first positions

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

template <typename T>
void AddGram(const Matrix& rows, double scale, T* gram) {
  for (int i = 0; i < kHeadDim; ++i) {
    for (int j = 0; j < kHeadDim; ++j) {
      double sum = 0;
      for (const auto& row : rows) sum += row[i] * row[j];
      gram[i * kHeadDim + j] += static_cast<T>(scale * sum);
    }
  }
}

// `x` on `y`, both as they are or scaled to a Frobenius norm of 1.
Matrix Stacked(Matrix x, Matrix y, bool is_normalised) {
  for (Matrix* block : {&x, &y}) {
    double squares = 0;
    for (const auto& row : *block) {
      for (const double value : row) squares += value * value;
    }
    for (auto& row : *block) {
      for (double& value : row) value /= is_normalised ? std::sqrt(squares) : 1;
    }
  }
  x.insert(x.end(), y.begin(), y.end());
  return x;
}

class ZackTest : public ::testing::TestWithParam<bool> {
 protected:
  ZackTest() {
    Random random(11);
    statistics_ = MakeStatistics({kLayers, kKvHeads * kGroup, kKvHeads, kHeadDim});
    statistics_.n_rows = kTokens;
    apart_ = statistics_;
    apart_.n_rows = kTokens - kFirstTokens;
    apart_.n_sink_rows = kFirstTokens;
    for (int h = 0; h < kLayers * kKvHeads; ++h) {
      const Matrix q = RandomRows(&random, kGroup * kTokens, 0.03 + 0.02 * h, 3.0);
      const Matrix k = RandomRows(&random, kTokens, 0.1, 0.7);
      const Matrix v = RandomRows(&random, kTokens, 0.05, 0.4);
      // The rows of W_O of the group's query heads, transposed: [group * hidden, head_dim].
      const Matrix w = RandomRows(&random, kGroup * kHiddenDim, 0.02 + 0.02 * h, 0.5);
      constexpr int kSquare = kHeadDim * kHeadDim;
      AddGram(q, 1.0 / kTokens, &statistics_.q_post.covariance[h * kSquare]);
      AddGram(k, 1.0 / kTokens, &statistics_.k_post.covariance[h * kSquare]);
      AddGram(v, 1.0 / kTokens, &statistics_.v.covariance[h * kSquare]);
      const auto add_apart = [&](const Matrix& rows, int n_per_token, HeadMoments* first,
                                 HeadMoments* others) {
        const auto end = rows.begin() + kFirstTokens * n_per_token;
        AddGram({rows.begin(), end}, 1.0 / kFirstTokens, &first->covariance[h * kSquare]);
        AddGram({end, rows.end()}, 1.0 / (kTokens - kFirstTokens),
                &others->covariance[h * kSquare]);
      };
      add_apart(q, kGroup, &apart_.sink_q_post, &apart_.q_post);
      add_apart(k, 1, &apart_.sink_k_post, &apart_.k_post);
      add_apart(v, 1, &apart_.sink_v, &apart_.v);
      output_grams_.emplace_back(kSquare, 0.0);
      AddGram(w, 1.0, output_grams_.back().data());
      reference_qk_.push_back(reference::DecomposeStacked(Stacked(q, k, GetParam())));
      reference_v_.push_back(reference::DecomposeStacked(Stacked(v, w, GetParam())));
    }
    analysis_ = *AnalyseZack({&statistics_, {}, output_grams_, {.is_normalised = GetParam()}});
  }

  CalibrationStatistics statistics_;
  CalibrationStatistics apart_;  // the same rows, of which those at the first positions are apart
  std::vector<std::vector<double>> output_grams_;
  std::vector<reference::Svd> reference_qk_, reference_v_;
  BasisAnalysis analysis_;
};

// The first `rank` reference vectors as columns.
std::vector<float> Columns(const reference::Svd& svd) {
  std::vector<float> columns(kHeadDim * kHeadDim);
  for (int i = 0; i < kHeadDim; ++i) {
    for (int j = 0; j < kHeadDim; ++j) {
      columns[i * kHeadDim + j] = static_cast<float>(svd.right[j][i]);
    }
  }
  return columns;
}

TEST_P(ZackTest, RotationsAreThoseOfTheStackedMatrices) {
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    const HeadAnalysis& head = analysis_.heads[h];
    EXPECT_EQ(head.query_basis, head.key_basis);
    for (const int rank : {1, 5, 16, 31}) {
      EXPECT_NEAR(SubspaceOverlap(head.key_basis, Columns(reference_qk_[h]), kHeadDim, rank), 1,
                  1e-4);
      EXPECT_NEAR(SubspaceOverlap(head.value_basis, Columns(reference_v_[h]), kHeadDim, rank), 1,
                  1e-4);
    }
    for (int i = 0; i < kHeadDim; ++i) {
      for (int j = 0; j < kHeadDim; ++j) {
        EXPECT_EQ(head.output_basis[i * kHeadDim + j], head.value_basis[j * kHeadDim + i]);
      }
    }
  }
}

TEST_P(ZackTest, SpectraAreThoseOfTheStackedMatrices) {
  const double qk_scale = GetParam() ? 1 : std::sqrt(kTokens);  // moments are means
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(analysis_.spectra[h].qk[i] * qk_scale, reference_qk_[h].singular_values[i],
                  1e-5 * reference_qk_[h].singular_values[0]);
      EXPECT_NEAR(analysis_.spectra[h].v[i], reference_v_[h].singular_values[i],
                  1e-5 * reference_v_[h].singular_values[0]);
    }
  }
}

// Without sinks a cache stores what calibration keeps apart, so that it counts.
TEST_P(ZackTest, FirstPositionsCountWhereTheyAreAskedFor) {
  const auto of_apart = [&](bool counts) {
    return *AnalyseZack({&apart_,
                         {},
                         output_grams_,
                         {.counts_first_positions = counts, .is_normalised = GetParam()}});
  };
  const BasisAnalysis with = of_apart(true), without = of_apart(false);
  double difference = 0;
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(with.spectra[h].qk[i], analysis_.spectra[h].qk[i],
                  1e-5 * analysis_.spectra[h].qk[0]);
      EXPECT_NEAR(with.spectra[h].v[i], analysis_.spectra[h].v[i],
                  1e-5 * analysis_.spectra[h].v[0]);
      difference += std::abs(without.spectra[h].qk[i] / analysis_.spectra[h].qk[0] -
                             analysis_.spectra[h].qk[i] / analysis_.spectra[h].qk[0]);
    }
    for (const int rank : {1, 5, 16}) {
      EXPECT_NEAR(
          SubspaceOverlap(with.heads[h].key_basis, analysis_.heads[h].key_basis, kHeadDim, rank), 1,
          1e-4);
    }
  }
  EXPECT_GT(difference, 0.01);
}

TEST_P(ZackTest, FdcCountsThemLikewise) {
  const auto analyse = [&](const CalibrationStatistics& statistics, bool counts) {
    return *AnalyseFdc(
        {&statistics, output_grams_, {}, {.counts_first_positions = counts, .is_whitened = false}});
  };
  const BasisAnalysis with = analyse(apart_, true), all = analyse(statistics_, false);
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(with.spectra[h].qk[i], all.spectra[h].qk[i], 1e-5 * all.spectra[h].qk[0]);
      EXPECT_EQ(with.spectra[h].v[i], all.spectra[h].v[i]);  // those of the weights
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Normalised, ZackTest, ::testing::Bool());

}  // namespace
}  // namespace kvlathe
