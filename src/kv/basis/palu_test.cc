#include "kv/basis/palu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "kv/basis/fdc_reference.h"

namespace kvlathe {
namespace {

using reference::Matrix;
using Vector = std::vector<double>;

constexpr int kHeadDim = 32, kHiddenDim = 40, kLayers = 2, kKvHeads = 2, kTokens = 150;
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
      const double latent = random->Normal() * std::exp(-0.08 * i);
      for (int j = 0; j < kHiddenDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return inputs;
}

// methods.md 3.1, "whitened", step by step: L L^T = X^T X / tokens, the SVD of W L, U_g = U sqrt(S)
// and V_g = sqrt(S) V^T L^-1.
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
    Matrix transposed(kHiddenDim, Vector(kHeadDim, 0.0));  // (W L)^T, whose right vectors are U
    for (int i = 0; i < kHeadDim; ++i) {
      for (int j = 0; j < kHiddenDim; ++j) {
        for (int k = 0; k < kHiddenDim; ++k) transposed[j][i] += weights[i][k] * lower[k][j];
      }
    }
    const reference::Svd svd = reference::DecomposeStacked(transposed);
    singular_values = svd.singular_values;
    for (int r = 0; r < kHeadDim; ++r) {
      const double root = std::sqrt(singular_values[r]);
      Vector v(kHiddenDim, 0.0);
      for (int j = 0; j < kHiddenDim; ++j) {
        for (int i = 0; i < kHeadDim; ++i) v[j] += transposed[j][i] * svd.right[r][i];
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
  Matrix back;   // [rank][kHeadDim]
};

Vector Project(const Matrix& weights, const Vector& bias, const Vector& x) {
  Vector row = bias;
  for (int i = 0; i < kHeadDim; ++i) {
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
    std::ranges::copy(mean, moments->mean.begin() + head_idx * kHeadDim);
    std::ranges::copy(gram, moments->gram.begin() + head_idx * kSquare);
  }

  BasisAnalysis Analyse(bool is_whitened) const {
    BasisInputs inputs = {&statistics_, value_grams_};
    inputs.options.is_whitened = is_whitened;
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

// `there` [kHeadDim, kHeadDim] and `back` of the implementation against the literal factors.
void ExpectSameLatents(const LiteralPalu& literal, const Matrix& weights, const Vector& x,
                       const std::vector<float>& there, const std::vector<float>& back) {
  const Vector row = Project(weights, Vector(kHeadDim, 0.0), x);
  Vector expected(kHeadDim, 0.0), found(kHeadDim, 0.0);
  for (int r = 0; r < kHeadDim; ++r) {
    double latent = 0;
    for (int i = 0; i < kHeadDim; ++i) latent += row[i] * there[i * kHeadDim + r];
    const double literal_latent = literal.Latent(x, r);
    // Singular vectors have either sign.
    EXPECT_NEAR(std::abs(latent), std::abs(literal_latent), 2e-3) << "latent " << r;
    for (int i = 0; i < kHeadDim; ++i) {
      expected[i] += literal_latent * literal.back[r][i];
      found[i] += latent * back[r * kHeadDim + i];
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
  EXPECT_TRUE(basis.has_latent_keys());
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
