#include "analysis/bases/palu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "analysis/bases/fdc_reference.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using reference::Matrix;
using Vector = std::vector<double>;

constexpr int kHeadDim = 32, kHiddenDim = 140, kLayers = 2, kKvHeads = 4, kTokens = 250;
constexpr int kHeads = kLayers * kKvHeads, kSquare = kHeadDim * kHeadDim;

// Inputs of a layer that do not lie around 0, in few directions more than in others.
Matrix RandomInputs(Random* random) {
  Matrix mixing(kHiddenDim, Vector(kHiddenDim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  Matrix inputs(kTokens, Vector(kHiddenDim));
  for (auto& row : inputs) {
    for (int i = 0; i < kHiddenDim; ++i) row[i] = 0.5 * (i % 3);
    for (int i = 0; i < kHiddenDim; ++i) {
      const double latent = random->Normal() * std::exp(-0.02 * i);
      for (int j = 0; j < kHiddenDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return inputs;
}

// The whitened factors of docs/methods/palu.md, step by step: L L^T = X^T X / tokens, the SVD of
// the product W L, U_g = U sqrt(S) and V_g = sqrt(S) V^T L^-1.
struct LiteralPalu {
  LiteralPalu(const Matrix& inputs, const Matrix& weights) {
    Matrix gram(kHiddenDim, Vector(kHiddenDim, 0.0));
    for (const auto& x : inputs) {
      for (int i = 0; i < kHiddenDim; ++i) {
        for (int j = 0; j < kHiddenDim; ++j) gram[i][j] += x[i] * x[j] / kTokens;
      }
    }
    Matrix lower(kHiddenDim, Vector(kHiddenDim, 0.0));
    for (int i = 0; i < kHiddenDim; ++i) {
      for (int j = 0; j <= i; ++j) {
        double rest = gram[i][j];
        for (int k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
        lower[i][j] = i == j ? std::sqrt(rest) : rest / lower[j][j];
      }
    }
    const int width = static_cast<int>(weights.size());
    Matrix transposed(kHiddenDim, Vector(width, 0.0));  // (W L)^T, whose right vectors are U
    for (int i = 0; i < width; ++i) {
      for (int j = 0; j < kHiddenDim; ++j) {
        for (int k = 0; k < kHiddenDim; ++k) transposed[j][i] += weights[i][k] * lower[k][j];
      }
    }
    const reference::Svd svd = reference::DecomposeStacked(transposed);
    singular_values = svd.singular_values;
    for (int r = 0; r < width; ++r) {
      const double root = std::sqrt(singular_values[r]);
      Vector v(kHiddenDim, 0.0);
      for (int j = 0; j < kHiddenDim; ++j) {
        for (int i = 0; i < width; ++i) v[j] += transposed[j][i] * svd.right[r][i];
        v[j] /= singular_values[r];
      }
      // z L = v, from the last entry on.
      Vector z(kHiddenDim);
      for (int j = kHiddenDim - 1; j >= 0; --j) {
        double rest = v[j];
        for (int k = j + 1; k < kHiddenDim; ++k) rest -= z[k] * lower[k][j];
        z[j] = rest / lower[j][j];
      }
      there.emplace_back();
      for (const double x : z) there.back().push_back(root * x);
      back.emplace_back();
      for (const double x : svd.right[r]) back.back().push_back(root * x);
    }
  }

  double Latent(const Vector& x, int r) const {
    double sum = 0;
    for (int j = 0; j < kHiddenDim; ++j) sum += x[j] * there[r][j];
    return sum;
  }

  Vector singular_values;
  Matrix there;  // [rank][kHiddenDim]
  Matrix back;   // [rank][rows of W]
};

Vector Project(const Matrix& weights, const Vector& bias, const Vector& x) {
  Vector row = bias;
  for (size_t i = 0; i < weights.size(); ++i) {
    for (int j = 0; j < kHiddenDim; ++j) row[i] += weights[i][j] * x[j];
  }
  return row;
}

class PaluTest : public ::testing::Test {
 protected:
  PaluTest() {
    Random random(5);
    statistics_ = MakeStatistics({kLayers, kKvHeads, kKvHeads, kHeadDim});
    statistics_.n_rows = kTokens;
    for (int l = 0; l < kLayers; ++l) inputs_.push_back(RandomInputs(&random));
    for (int h = 0; h < kHeads; ++h) {
      for (const bool is_key : {true, false}) {
        Matrix weights(kHeadDim, Vector(kHiddenDim));
        for (auto& row : weights) {
          for (double& x : row) x = 0.2 * random.Normal();
        }
        Vector bias(kHeadDim);
        for (double& x : bias) x = static_cast<float>(random.Normal());
        (is_key ? w_k_ : w_v_).push_back(weights);
        (is_key ? b_k_ : b_v_).emplace_back(bias.begin(), bias.end());
        SetMoments(h, weights, bias, is_key ? &statistics_.k_pre : &statistics_.v);
        std::vector<double> gram(kSquare, 0.0);
        for (int i = 0; i < kHeadDim; ++i) {
          for (int j = 0; j < kHeadDim; ++j) {
            for (int k = 0; k < kHiddenDim; ++k) {
              gram[i * kHeadDim + j] += weights[i][k] * weights[j][k];
            }
          }
        }
        (is_key ? key_grams_ : value_grams_).push_back(gram);
      }
    }
  }

  void SetMoments(int head_idx, const Matrix& weights, const Vector& bias, HeadMoments* moments) {
    Vector mean(kHeadDim, 0.0), gram(kSquare, 0.0);
    for (const auto& x : inputs_[head_idx / kKvHeads]) {
      const Vector row = Project(weights, bias, x);
      for (int i = 0; i < kHeadDim; ++i) {
        mean[i] += row[i] / kTokens;
        for (int j = 0; j < kHeadDim; ++j) gram[i * kHeadDim + j] += row[i] * row[j] / kTokens;
      }
    }
    for (int i = 0; i < kSquare; ++i) gram[i] -= mean[i / kHeadDim] * mean[i % kHeadDim];
    std::ranges::copy(mean, moments->mean.begin() + head_idx * kHeadDim);
    std::ranges::copy(gram, moments->covariance.begin() + head_idx * kSquare);
  }

  // Of the rows of all heads of each layer.
  void SetMomentsAcrossHeads() {
    constexpr int kWidth = kKvHeads * kHeadDim;
    for (const bool is_key : {true, false}) {
      std::vector<float>& covariance =
          is_key ? statistics_.k_pre_across_heads : statistics_.v_across_heads;
      for (int l = 0; l < kLayers; ++l) {
        const std::vector<float> bias = BiasOfGroup(is_key, l, kKvHeads);
        const Matrix weights = WeightsOfGroup(is_key, l, kKvHeads);
        Matrix rows;
        for (const auto& x : inputs_[l]) {
          rows.push_back(Project(weights, {bias.begin(), bias.end()}, x));
        }
        Vector mean(kWidth, 0.0);
        for (const auto& row : rows) {
          for (int i = 0; i < kWidth; ++i) mean[i] += row[i] / kTokens;
        }
        for (int i = 0; i < kWidth; ++i) {
          for (int j = 0; j < kWidth; ++j) {
            double sum = 0;
            for (const auto& row : rows) {
              sum += (row[i] - mean[i]) * (row[j] - mean[j]) / kTokens;
            }
            covariance.push_back(static_cast<float>(sum));
          }
        }
      }
    }
  }

  // Of heads [group_idx * n, (group_idx + 1) * n), below each other.
  Matrix WeightsOfGroup(bool is_key, int group_idx, int n) const {
    Matrix joined;
    for (int h = group_idx * n; h < (group_idx + 1) * n; ++h) {
      const Matrix& head = (is_key ? w_k_ : w_v_)[h];
      joined.insert(joined.end(), head.begin(), head.end());
    }
    return joined;
  }

  std::vector<float> BiasOfGroup(bool is_key, int group_idx, int n) const {
    std::vector<float> joined;
    for (int h = group_idx * n; h < (group_idx + 1) * n; ++h) {
      const std::vector<float>& head = (is_key ? b_k_ : b_v_)[h];
      joined.insert(joined.end(), head.begin(), head.end());
    }
    return joined;
  }

  BasisAnalysis Analyse(bool is_whitened, int heads_per_latent = 1) const {
    BasisInputs inputs = {&statistics_, value_grams_};
    inputs.options.is_whitened = is_whitened;
    inputs.options.heads_per_latent = heads_per_latent;
    inputs.key_grams = key_grams_;
    inputs.key_biases = b_k_;
    inputs.value_biases = b_v_;
    return *AnalysePalu(inputs);
  }

  std::vector<Matrix> inputs_, w_k_, w_v_;
  std::vector<std::vector<float>> b_k_, b_v_;
  CalibrationStatistics statistics_;
  std::vector<std::vector<double>> key_grams_, value_grams_;
};

// `there` [width, width] and `back` of the implementation against the literal factors.
void ExpectSameLatents(const LiteralPalu& literal, const Matrix& weights, const Vector& x,
                       const std::vector<float>& there, const std::vector<float>& back) {
  const int width = static_cast<int>(weights.size());
  const Vector row = Project(weights, Vector(width, 0.0), x);
  Vector expected(width, 0.0), found(width, 0.0);
  for (int r = 0; r < width; ++r) {
    double latent = 0;
    for (int i = 0; i < width; ++i) latent += row[i] * there[i * width + r];
    const double literal_latent = literal.Latent(x, r);
    // Singular vectors have either sign.
    EXPECT_NEAR(std::abs(latent), std::abs(literal_latent), 2e-3) << "latent " << r;
    for (int i = 0; i < width; ++i) {
      expected[i] += literal_latent * literal.back[r][i];
      found[i] += latent * back[r * width + i];
      EXPECT_NEAR(found[i], expected[i], 2e-3) << "rank " << r + 1;
    }
  }
}

TEST_F(PaluTest, LatentsAndTheirWayBackAreThoseOfTheWhitenedSvd) {
  const BasisAnalysis analysis = Analyse(true);
  for (int h = 0; h < kHeads; ++h) {
    const Matrix& inputs = inputs_[h / kKvHeads];
    const LiteralPalu k(inputs, w_k_[h]), v(inputs, w_v_[h]);
    const HeadAnalysis& head = analysis.heads[h];
    for (int r = 0; r < kHeadDim; ++r) {
      EXPECT_NEAR(analysis.spectra[h].qk[r], k.singular_values[r], 1e-4 * k.singular_values[0]);
      EXPECT_NEAR(analysis.spectra[h].v[r], v.singular_values[r], 1e-4 * v.singular_values[0]);
    }
    for (int t = 0; t < 10; ++t) {
      ExpectSameLatents(k, w_k_[h], inputs[t], head.key_basis, head.key_way_back);
      ExpectSameLatents(v, w_v_[h], inputs[t], head.value_basis, head.output_basis);
    }
    EXPECT_EQ(head.key_offset, b_k_[h]);
    EXPECT_EQ(head.value_offset, b_v_[h]);
    EXPECT_TRUE(head.query_basis.empty());
  }
}

TEST_F(PaluTest, LatentsOfSeveralHeadsAreThoseOfTheirJointSvd) {
  SetMomentsAcrossHeads();
  for (const int n : {2, kKvHeads}) {
    SCOPED_TRACE(n);
    const BasisAnalysis analysis = Analyse(true, n);
    ASSERT_EQ(std::ssize(analysis.heads), kHeads / n);
    for (int group = 0; group < kHeads / n; ++group) {
      const Matrix& inputs = inputs_[group * n / kKvHeads];
      const Matrix w_k = WeightsOfGroup(true, group, n), w_v = WeightsOfGroup(false, group, n);
      const LiteralPalu k(inputs, w_k), v(inputs, w_v);
      const HeadAnalysis& head = analysis.heads[group];
      const HeadSpectra& spectra = analysis.SpectraOf(group * n + 1);
      for (int r = 0; r < n * kHeadDim; ++r) {
        EXPECT_NEAR(spectra.qk[r], k.singular_values[r], 1e-4 * k.singular_values[0]);
        EXPECT_NEAR(spectra.v[r], v.singular_values[r], 1e-4 * v.singular_values[0]);
      }
      for (int t = 0; t < 10; ++t) {
        ExpectSameLatents(k, w_k, inputs[t], head.key_basis, head.key_way_back);
        ExpectSameLatents(v, w_v, inputs[t], head.value_basis, head.output_basis);
      }
      EXPECT_EQ(head.key_offset, BiasOfGroup(true, group, n));
      EXPECT_EQ(head.value_offset, BiasOfGroup(false, group, n));
    }
  }
}

// Each head stores a slice of the first r latents, and all slices make its rows again.
TEST_F(PaluTest, SlicesAreTheFirstLatentsOfTheGroup) {
  SetMomentsAcrossHeads();
  constexpr int kSharing = 2, kRankK = 16, kRankV = 32;
  const ModelBasis basis =
      CutBasis(Analyse(true, kSharing), std::vector<HeadRanks>(kHeads, {kRankK, kRankV}));
  EXPECT_EQ(basis.keys, Keys(LatentKeys{.heads_per_latent = kSharing}));
  for (int h = 0; h < kHeads; ++h) {
    const int group = h / kSharing, slice = h % kSharing;
    const Matrix& inputs = inputs_[h / kKvHeads];
    const Vector& x = inputs[7];
    for (const bool is_key : {true, false}) {
      const int rank = is_key ? kRankK : kRankV;
      const Matrix weights = WeightsOfGroup(is_key, group, kSharing);
      const LiteralPalu literal(inputs, weights);
      const Vector row = Project(weights, Vector(kSharing * kHeadDim, 0.0), x);
      Vector latents;  // of all slices
      for (int g = group * kSharing; g < (group + 1) * kSharing; ++g) {
        const HeadBasis& head = basis.heads[g];
        const std::vector<float>& map = is_key ? head.key_basis : head.value_basis;
        ASSERT_EQ(std::ssize(map), kSharing * kHeadDim * rank);
        for (int r = 0; r < rank; ++r) {
          double latent = 0;
          for (size_t i = 0; i < row.size(); ++i) latent += row[i] * map[i * rank + r];
          const double expected = literal.Latent(x, static_cast<int>(latents.size()));
          EXPECT_NEAR(std::abs(latent), std::abs(expected), 2e-3);
          latents.push_back(latent);
        }
      }
      const HeadBasis& head = basis.heads[h];
      const std::vector<float>& back = is_key ? head.key_way_back : head.output_basis;
      ASSERT_EQ(std::ssize(back), kSharing * rank * kHeadDim);
      for (int i = 0; i < kHeadDim; ++i) {
        double expected = 0, found = 0;
        for (int r = 0; r < kSharing * rank; ++r) {
          expected += literal.Latent(x, r) * literal.back[r][slice * kHeadDim + i];
          found += latents[r] * back[r * kHeadDim + i];
        }
        EXPECT_NEAR(found, expected, 5e-3);
      }
    }
  }
}

TEST_F(PaluTest, RanksOfAGroupAreSplitEvenlyInSlicesOf16) {
  SetMomentsAcrossHeads();
  constexpr int kSharing = 2;
  const BasisAnalysis analysis = Analyse(true, kSharing);
  for (const bool is_uniform : {false, true}) {
    RankRequest request;
    request.value = 0.5;
    request.uniform = is_uniform;
    const auto allocation = AllocatePalu(analysis, request);
    ASSERT_TRUE(allocation.ok()) << allocation.status();
    ASSERT_EQ(std::ssize(allocation->ranks), kHeads);
    double n_removed = 0;
    for (int h = 0; h < kHeads; ++h) {
      EXPECT_EQ(allocation->ranks[h], allocation->ranks[h / kSharing * kSharing]);
      EXPECT_EQ(allocation->ranks[h].rank_k % 16, 0);
      EXPECT_EQ(allocation->ranks[h].rank_v % 16, 0);
      n_removed += 2 * kHeadDim - allocation->ranks[h].rank_k - allocation->ranks[h].rank_v;
    }
    EXPECT_NEAR(allocation->removal_rate, n_removed / (2 * kHeads * kHeadDim), 1e-12);
    EXPECT_GT(allocation->removal_rate, 0.2);
    EXPECT_LE(allocation->removal_rate, 0.5);
  }
  // The bytes that ratio counts are those of heads.
  RankRequest request;
  request.goal = RankRequest::Goal::kRatio;
  request.value = 1.5;
  request.kv_fraction = [](const std::vector<HeadRanks>& ranks) {
    EXPECT_EQ(std::ssize(ranks), kHeads);
    double n = 0;
    for (const HeadRanks& r : ranks) n += r.rank_k + r.rank_v;
    return n / (2 * kHeads * kHeadDim);
  };
  const auto allocation = AllocatePalu(analysis, request);
  ASSERT_TRUE(allocation.ok()) << allocation.status();
  EXPECT_LE(request.kv_fraction(allocation->ranks), 1 / 1.5);
}

TEST_F(PaluTest, GroupsThatCannotBeAreRefused) {
  BasisInputs inputs = {&statistics_, value_grams_};
  inputs.options.heads_per_latent = 3;
  EXPECT_NE(MessageOf(AnalysePalu(inputs).status()).find("4 KV heads"), std::string::npos);
  inputs.options.heads_per_latent = 2;
  EXPECT_NE(MessageOf(AnalysePalu(inputs).status()).find("--across-heads"), std::string::npos);
}

TEST_F(PaluTest, WithoutWhiteningTheSvdIsThatOfTheWeights) {
  const BasisAnalysis analysis = Analyse(false);
  for (int h = 0; h < kHeads; ++h) {
    Matrix transposed(kHiddenDim, Vector(kHeadDim));
    for (int i = 0; i < kHeadDim; ++i) {
      for (int j = 0; j < kHiddenDim; ++j) transposed[j][i] = w_k_[h][i][j];
    }
    const reference::Svd svd = reference::DecomposeStacked(transposed);
    for (int r = 0; r < kHeadDim; ++r) {
      EXPECT_NEAR(analysis.spectra[h].qk[r], svd.singular_values[r], 1e-6);
    }
  }
}

TEST_F(PaluTest, CutsKeepTheFirstLatents) {
  const BasisAnalysis analysis = Analyse(true);
  const ModelBasis basis = CutBasis(analysis, std::vector<HeadRanks>(kHeads, {16, 32}));
  EXPECT_EQ(basis.keys, Keys(LatentKeys{}));
  const HeadBasis& head = basis.heads[1];
  ASSERT_EQ(std::ssize(head.key_way_back), 16 * kHeadDim);
  ASSERT_EQ(std::ssize(head.key_basis), 16 * kHeadDim);
  EXPECT_TRUE(head.query_basis.empty());
  for (int i = 0; i < kHeadDim; ++i) {
    EXPECT_EQ(head.key_way_back[15 * kHeadDim + i],
              analysis.heads[1].key_way_back[15 * kHeadDim + i]);
    EXPECT_EQ(head.key_basis[i * 16 + 15], analysis.heads[1].key_basis[i * kHeadDim + 15]);
  }
}

}  // namespace
}  // namespace kvlathe
