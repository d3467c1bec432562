#include "analysis/bases/zack.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analysis/bases/fdc_reference.h"
#include "analysis/statistics/spectrum.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kHeadDim = 32, kHiddenDim = 40, kLayers = 2, kKvHeads = 2, kGroup = 3, kTokens = 70;

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
    for (int h = 0; h < kLayers * kKvHeads; ++h) {
      const Matrix q = RandomRows(&random, kGroup * kTokens, 0.03 + 0.02 * h, 3.0);
      const Matrix k = RandomRows(&random, kTokens, 0.1, 0.7);
      const Matrix v = RandomRows(&random, kTokens, 0.05, 0.4);
      // The rows of W_O of the group's query heads, transposed: [group * hidden, head_dim].
      const Matrix w = RandomRows(&random, kGroup * kHiddenDim, 0.02 + 0.02 * h, 0.5);
      constexpr int kSquare = kHeadDim * kHeadDim;
      AddGram(q, 1.0 / kTokens, &statistics_.q_post.gram[h * kSquare]);
      AddGram(k, 1.0 / kTokens, &statistics_.k_post.gram[h * kSquare]);
      AddGram(v, 1.0 / kTokens, &statistics_.v.gram[h * kSquare]);
      output_grams_.emplace_back(kSquare, 0.0);
      AddGram(w, 1.0, output_grams_.back().data());
      reference_qk_.push_back(reference::DecomposeStacked(Stacked(q, k, GetParam())));
      reference_v_.push_back(reference::DecomposeStacked(Stacked(v, w, GetParam())));
    }
    analysis_ = *AnalyseZack({&statistics_, {}, output_grams_, {.is_normalised = GetParam()}});
  }

  CalibrationStatistics statistics_;
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

INSTANTIATE_TEST_SUITE_P(Normalised, ZackTest, ::testing::Bool());

}  // namespace
}  // namespace kvlathe
