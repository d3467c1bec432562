#include "analysis/rotations/spectral.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/bases/fdc_reference.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;

constexpr int kLayersOfTest = 2, kKvHeadsOfTest = 2, kGroupOfTest = 3, kTokensOfTest = 90;

// Rows with a mean, whose directions fall off.
Matrix FallingRows(Random* random, int dim, int n_rows, double decay) {
  Matrix mixing(dim, std::vector<double>(dim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  std::vector<double> centre(dim);
  for (double& x : centre) x = 2 * random->Normal();
  Matrix rows(n_rows, centre);
  for (auto& row : rows) {
    for (int i = 0; i < dim; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i);
      for (int j = 0; j < dim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

// Mean, and covariance summed over the rows of a token.
void SetMomentsOf(const Matrix& rows, int rows_per_token, int64_t head_idx, HeadMoments* moments) {
  const int dim = static_cast<int>(rows[0].size());
  std::vector<double> mean(dim);
  for (const auto& row : rows) {
    for (int i = 0; i < dim; ++i) mean[i] += row[i] / static_cast<double>(rows.size());
  }
  for (int i = 0; i < dim; ++i) {
    moments->mean[head_idx * dim + i] = static_cast<float>(mean[i]);
    for (int j = 0; j < dim; ++j) {
      double sum = 0;
      for (const auto& row : rows) sum += (row[i] - mean[i]) * (row[j] - mean[j]);
      moments->covariance[(head_idx * dim + i) * dim + j] =
          static_cast<float>(sum * rows_per_token / static_cast<double>(rows.size()));
    }
  }
}

// The rotation as it is published, of rows of which a covariance is taken: U in ascending order,
// Sylvester's H by its definition, and the permutation. dim is a power of two.
Matrix LiteralRotation(const Matrix& rows, int dim) {
  const reference::Svd svd = reference::DecomposeStacked(rows);
  Matrix u(dim, std::vector<double>(dim));
  for (int i = 0; i < dim; ++i) {
    std::vector<double> direction = svd.right[dim - 1 - i];
    const auto largest = std::ranges::max_element(
        direction, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double sign = *largest < 0 ? -1 : 1;  // Spectrum::vectors
    for (int row = 0; row < dim; ++row) u[row][i] = sign * direction[row];
  }
  int n_bits = 0;
  while (1 << n_bits < dim) ++n_bits;
  Matrix rotation(dim, std::vector<double>(dim));
  for (int j = 0; j < dim; ++j) {
    int reversed = 0;
    for (int b = 0; b < n_bits; ++b) {
      if ((j & (1 << b)) != 0) reversed += 1 << (n_bits - 1 - b);
    }
    const int column = dim - 1 - reversed;
    for (int row = 0; row < dim; ++row) {
      for (int i = 0; i < dim; ++i) {
        int n_common = 0;
        for (int b = 0; b < n_bits; ++b) n_common += (i & column) >> b & 1;
        rotation[row][j] += u[row][i] * (n_common % 2 == 0 ? 1 : -1) / std::sqrt(dim);
      }
    }
  }
  return rotation;
}

struct SpectralModel {
  explicit SpectralModel(int dim) {
    Random random(11);
    statistics =
        MakeStatistics({kLayersOfTest, kKvHeadsOfTest * kGroupOfTest, kKvHeadsOfTest, dim});
    statistics.n_rows = kTokensOfTest;
    statistics.outputs = statistics.q_post;
    for (int h = 0; h < kLayersOfTest * kKvHeadsOfTest; ++h) {
      queries.push_back(FallingRows(&random, dim, kTokensOfTest * kGroupOfTest, 0.1 + 0.05 * h));
      outputs.push_back(FallingRows(&random, dim, kTokensOfTest * kGroupOfTest, 0.15));
      SetMomentsOf(queries.back(), kGroupOfTest, h, &statistics.q_post);
      SetMomentsOf(outputs.back(), kGroupOfTest, h, &statistics.outputs);
    }
  }
  CalibrationStatistics statistics;
  std::vector<Matrix> queries, outputs;  // of KV heads
};

void ExpectRotation(const std::vector<float>& found, const Matrix& expected) {
  const size_t dim = expected.size();
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      ASSERT_NEAR(found[i * dim + j], expected[i][j], 2e-3) << i << ", " << j;
    }
  }
}

TEST(Spectral, RotationsAreThePublishedOnes) {
  constexpr int kDim = 16;
  const SpectralModel model(kDim);
  BasisInputs inputs = {&model.statistics};
  inputs.options.centres_biases_alone = true;
  const BasisAnalysis analysis = *AnalyseSpectral(inputs);
  ASSERT_EQ(analysis.heads.size(), model.queries.size());
  for (size_t h = 0; h < analysis.heads.size(); ++h) {
    ExpectRotation(analysis.heads[h].key_basis, LiteralRotation(model.queries[h], kDim));
    ExpectRotation(analysis.heads[h].value_basis, LiteralRotation(model.outputs[h], kDim));
    EXPECT_EQ(analysis.heads[h].query_basis, analysis.heads[h].key_basis);
    EXPECT_TRUE(analysis.heads[h].key_offset.empty());
  }
}

TEST(Spectral, HeadsOfALayerShareTheRotationOfAllTheirRows) {
  constexpr int kDim = 16;
  const SpectralModel model(kDim);
  BasisInputs inputs = {&model.statistics};
  inputs.options = {.is_centred = false, .shares_heads = true};
  const BasisAnalysis analysis = *AnalyseSpectral(inputs);
  for (int layer = 0; layer < kLayersOfTest; ++layer) {
    const size_t first = layer * kKvHeadsOfTest;
    Matrix queries = model.queries[first], outputs = model.outputs[first];
    queries.insert(queries.end(), model.queries[first + 1].begin(), model.queries[first + 1].end());
    outputs.insert(outputs.end(), model.outputs[first + 1].begin(), model.outputs[first + 1].end());
    for (const size_t h : {first, first + 1}) {
      ExpectRotation(analysis.heads[h].key_basis, LiteralRotation(queries, kDim));
      ExpectRotation(analysis.heads[h].value_basis, LiteralRotation(outputs, kDim));
    }
  }
}

// Rows of a model with biases lose their means, and outputs that of the values.
TEST(Spectral, MeansAreTakenOffWhereTheModelHasBiases) {
  constexpr int kDim = 16;
  SpectralModel model(kDim);
  Random random(4);
  for (HeadMoments* rows : {&model.statistics.k_post, &model.statistics.v}) {
    for (float& x : rows->mean) x = static_cast<float>(5 * random.Normal());
  }
  const std::vector<std::vector<float>> biases(model.queries.size(), std::vector<float>(kDim, 1));
  BasisInputs inputs = {&model.statistics};
  inputs.options.centres_biases_alone = true;
  inputs.key_biases = biases;
  const BasisAnalysis analysis = *AnalyseSpectral(inputs);
  for (size_t h = 0; h < analysis.heads.size(); ++h) {
    const HeadAnalysis& head = analysis.heads[h];
    Matrix outputs = model.outputs[h];
    for (int i = 0; i < kDim; ++i) {
      const float v_mean = model.statistics.v.mean[h * kDim + i];
      EXPECT_EQ(head.key_offset[i], model.statistics.k_post.mean[h * kDim + i]);
      EXPECT_EQ(head.value_offset[i], v_mean);
      for (auto& row : outputs) row[i] -= v_mean;
    }
    ExpectRotation(head.key_basis, LiteralRotation(model.queries[h], kDim));
    ExpectRotation(head.value_basis, LiteralRotation(outputs, kDim));
  }
}

// Also of head dims that are no powers of two: with R^T C R for the second moments C of the rows
// that a rotation is made of, every channel has the same share of their trace where H is one block,
// and nearly so where it has several.
TEST(Spectral, RotationsAreOrthogonalAndSpreadWhatTheySee) {
  for (const int dim : {8, 24, 64, 80, 96}) {
    SCOPED_TRACE(dim);
    const SpectralModel model(dim);
    BasisInputs inputs = {&model.statistics};
    inputs.options.is_centred = false;
    const BasisAnalysis analysis = *AnalyseSpectral(inputs);
    const std::vector<float>& r = analysis.heads[0].value_basis;
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        double dot = 0;
        for (int k = 0; k < dim; ++k) dot += double{r[k * dim + i]} * r[k * dim + j];
        ASSERT_NEAR(dot, i == j ? 1 : 0, 1e-5);
      }
    }
    std::vector<double> squares(dim);
    double all = 0;
    for (const auto& row : model.outputs[0]) {
      for (int j = 0; j < dim; ++j) {
        double x = 0;
        for (int k = 0; k < dim; ++k) x += row[k] * r[k * dim + j];
        squares[j] += x * x / dim, all += x * x / dim;
      }
    }
    const bool is_one_block = (dim & (dim - 1)) == 0;
    for (const double x : squares) {
      EXPECT_NEAR(x * dim * dim / all, dim, (is_one_block ? 1e-3 : 0.95) * dim);
    }
    const RankAllocation allocation = *AllocateSpectral(analysis, {.value = 0.5});
    for (const HeadRanks& ranks : allocation.ranks) {
      EXPECT_EQ(ranks, (HeadRanks{.rank_k = dim, .rank_v = dim}));
    }
  }
}

TEST(Spectral, RefusesStatisticsWithoutOutputsOrThatAreNotFinite) {
  SpectralModel model(8);
  model.statistics.outputs.mean[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(AnalyseSpectral({&model.statistics}).status().code(), StatusCode::kDataLoss);
  model.statistics.outputs = {};
  const Status status = AnalyseSpectral({&model.statistics}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("--outputs"), std::string::npos) << MessageOf(status);
}

}  // namespace
}  // namespace kvlathe
