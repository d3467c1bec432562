#include "analysis/bases/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvlathe {
namespace {

using Matrix = std::vector<float>;

// a [n, k] b [k, m]; b_transposed: b is [m, k].
Matrix Product(const Matrix& a, const Matrix& b, int n, int k, int m, bool b_transposed) {
  Matrix c(n * m, 0.0f);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < m; ++j) {
      for (int t = 0; t < k; ++t)
        c[i * m + j] += a[i * k + t] * b[b_transposed ? j * k + t : t * m + j];
    }
  }
  return c;
}

float MaxDifference(const Matrix& a, const Matrix& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST(Hadamard, LatentsComeBackTheSame) {
  Random random(4);
  constexpr int kHeadDim = 48, kRank = 32;
  HeadBasis head{.rank_k = kRank, .rank_v = kHeadDim};
  head.value_basis = head.output_basis = Matrix(kHeadDim * kHeadDim, 0.0f);
  for (int i = 0; i < kHeadDim * kRank; ++i) {
    head.key_basis.push_back(static_cast<float>(random.Normal()));
    head.key_way_back.push_back(static_cast<float>(random.Normal()));
  }
  ModelBasis mixed{1, 1, kHeadDim, {head}};
  MixByHadamard(&mixed);
  const HeadBasis& m = mixed.heads[0];
  EXPECT_TRUE(m.query_basis.empty());
  EXPECT_GT(MaxDifference(m.key_basis, head.key_basis), 0.5f);
  EXPECT_LT(
      MaxDifference(Product(m.key_basis, m.key_way_back, kHeadDim, kRank, kHeadDim, false),
                    Product(head.key_basis, head.key_way_back, kHeadDim, kRank, kHeadDim, false)),
      1e-4f);
}

TEST(Hadamard, ScoresAndOutputsStayTheSame) {
  Random random(3);
  constexpr int kHeadDim = 80;
  for (const int rank : {16, 48, 64, 80}) {
    const auto draw = [&](int n) {
      Matrix m(n);
      for (float& x : m) x = static_cast<float>(random.Normal());
      return m;
    };
    const HeadBasis head{rank,
                         rank,
                         draw(kHeadDim * rank),
                         draw(kHeadDim * rank),
                         draw(kHeadDim * rank),
                         draw(rank * kHeadDim)};
    for (void (*const mix)(ModelBasis*) : {MixByHadamard, MixAsGgml, FlipSigns}) {
      ModelBasis mixed{1, 1, kHeadDim, {head}};
      mix(&mixed);
      const HeadBasis& m = mixed.heads[0];
      EXPECT_GT(MaxDifference(m.key_basis, head.key_basis), 0.5f);
      EXPECT_LT(
          MaxDifference(Product(m.query_basis, m.key_basis, kHeadDim, rank, kHeadDim, true),
                        Product(head.query_basis, head.key_basis, kHeadDim, rank, kHeadDim, true)),
          1e-4f);
      EXPECT_LT(MaxDifference(
                    Product(m.value_basis, m.output_basis, kHeadDim, rank, kHeadDim, false),
                    Product(head.value_basis, head.output_basis, kHeadDim, rank, kHeadDim, false)),
                1e-4f);
    }
  }
}

// The matrix of llama.cpp's ggml_gen_hadamard over n channels, for every n neighbouring ones.
Matrix GgmlRotation(int n, int head_dim) {
  Matrix h(n * n, 0.0f);
  h[0] = 1 / std::sqrt(static_cast<float>(n));
  for (int s = 1; s < n; s *= 2) {
    for (int i = 0; i < s; ++i) {
      for (int j = 0; j < s; ++j) {
        h[(i + s) * n + j] = h[i * n + j + s] = h[i * n + j];
        h[(i + s) * n + j + s] = -h[i * n + j];
      }
    }
  }
  Matrix all(head_dim * head_dim, 0.0f);
  for (int begin = 0; begin < head_dim; begin += n) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) all[(begin + i) * head_dim + begin + j] = h[i * n + j];
    }
  }
  return all;
}

// llama.cpp rotates keys by the largest power of two from 64 on that divides the size of a head,
// and values by 64.
TEST(Hadamard, MixesAsLlamaCppRotates) {
  for (const auto& [head_dim, n_keys] :
       {std::pair(64, 64), std::pair(128, 128), std::pair(192, 64), std::pair(256, 256)}) {
    ModelBasis basis = IdentityBasis(1, 1, head_dim);
    MixAsGgml(&basis);
    const Matrix keys = GgmlRotation(n_keys, head_dim), values = GgmlRotation(64, head_dim);
    EXPECT_LT(MaxDifference(basis.heads[0].key_basis, keys), 1e-6f) << head_dim;
    EXPECT_LT(MaxDifference(basis.heads[0].query_basis, keys), 1e-6f) << head_dim;
    EXPECT_LT(MaxDifference(basis.heads[0].value_basis, values), 1e-6f) << head_dim;
    EXPECT_LT(MaxDifference(basis.heads[0].output_basis, values), 1e-6f) << head_dim;
  }
}

TEST(Hadamard, SpreadsAChannelEvenly) {
  ModelBasis basis = IdentityBasis(1, 2, 64);
  MixByHadamard(&basis);
  for (const float x : basis.heads[1].key_basis) EXPECT_FLOAT_EQ(std::abs(x), 0.125f);
}

TEST(Hadamard, TheIdentityKeepsRows) {
  const ModelBasis basis = IdentityBasis(2, 3, 16);
  EXPECT_EQ(basis.heads.size(), 6u);
  EXPECT_EQ(Product(basis.heads[5].value_basis, basis.heads[5].output_basis, 16, 16, 16, false),
            basis.heads[0].key_basis);
}

}  // namespace
}  // namespace kvlathe
