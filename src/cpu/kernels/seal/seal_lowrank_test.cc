// The low-rank factors of every instruction set by what they achieve.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/kernels/testing/seal_test_layer.h"
#include "tensor/decompositions.h"

namespace kvlathe {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class SealLowRankTest : public testing::TestWithParam<Isa> {};

// A [tokens][columns] and B [rank][columns] as they are stored.
struct StoredFactors {
  Matrix a, b;
};
StoredFactors ReadFactors(const Layer& layer, int h, bool is_key) {
  const RefFactors stored = layer.FactorsOf(h, is_key);
  const int n = stored.lowrank;
  StoredFactors f = {Matrix(stored.a.size() / n, n), Matrix(stored.b.size() / n, n)};
  for (int j = 0; j < n; ++j) {
    for (int t = 0; t < f.a.rows(); ++t) f.a(t, j) = stored.a[j * f.a.rows() + t];
    for (int c = 0; c < f.b.rows(); ++c) f.b(c, j) = stored.b[j * f.b.rows() + c];
  }
  return f;
}

Matrix ToMatrix(const std::vector<float>& x, int rank) {
  Matrix m(x.size() / rank, rank);
  for (size_t i = 0; i < x.size(); ++i) m(i / rank, i % rank) = x[i];
  return m;
}

// Frobenius norm of what the best approximation of this rank leaves.
double OptimalRest(const Matrix& r, int lowrank) {
  const Matrix gram = r.transpose() * r;
  const int dim = static_cast<int>(gram.rows());
  const std::vector<double> squares =
      DecomposeSymmetric({gram.data(), static_cast<size_t>(gram.size())}, dim).values;
  return std::sqrt(std::max(0.0, std::accumulate(squares.begin(), squares.end() - lowrank, 0.0)));
}

// Seals a run with these power loops and compares the factors with the best ones of their rank.
void ExpectNearlyOptimal(int lowrank, double share, int n_blocks, int power_loops, double slack,
                         Isa isa) {
  SCOPED_TRACE(
      fmt::format("rank {} share {} blocks {} loops {}", lowrank, share, n_blocks, power_loops));
  const PackedFormat format = Uniform(Channel(2, 64), Token(2, 64), lowrank, lowrank, share);
  Layer layer(format, DType::kBf16,
              DrawHeads(Data::kTypical, {{128, 128}, {80, 48}}, n_blocks, DType::kBf16, 4),
              n_blocks, true);
  ThreadPool pool(2);
  Sealer sealer(format, DType::kBf16, power_loops, &pool, isa);
  const SealJob job = layer.Job(5);
  ASSERT_TRUE(sealer.Run({&job, 1}).ok());
  const RefSealed want = layer.Ref();
  for (int h = 0; h < layer.n_heads(); ++h) {
    for (bool is_key : {true, false}) {
      const StoredFactors f = ReadFactors(layer, h, is_key);
      const Matrix r = ToMatrix(is_key ? want.heads[h].residual_k : want.heads[h].residual_v,
                                static_cast<int>(f.b.rows()));
      const Matrix unit = f.a.transpose() * f.a - Matrix::Identity(lowrank, lowrank);
      EXPECT_LT(unit.cwiseAbs().maxCoeff(), 1e-3);
      const double rest = (r - f.a * f.b.transpose()).norm();
      // Of fewer channels the same rank is a larger part, which a few loops find less well.
      EXPECT_LT(rest, (1 + (h == 0 ? slack : 2 * slack)) * OptimalRest(r, lowrank))
          << (is_key ? "K" : "V") << " of head " << h;
    }
  }
}

TEST_P(SealLowRankTest, FactorsAreNearlyOptimal) {
  for (int lowrank : {1, 2, 3, 4, 8, 20}) {
    for (double share : {0.0, 0.02}) {
      for (int n_blocks : {1, 8}) {
        // Many columns reach into the flat part of the spectrum, where a few loops find less.
        const double slack = lowrank > 8 ? 0.06 : 0.03;
        ExpectNearlyOptimal(lowrank, share, n_blocks, 3, slack, GetParam());
      }
    }
    ExpectNearlyOptimal(lowrank, 0.02, 8, 20, 0.01, GetParam());
  }
}

// Up to the widest that a spec allows, which holds all of a block's residual of as many channels.
TEST_P(SealLowRankTest, FactorsOfAllChannelsHoldTheWholeResidual) {
  ThreadPool pool(2);
  const PackedFormat format = Uniform(Channel(2, 64), Token(2, 64), kMaxPackedLowrank, 48, 0.02);
  for (bool is_prompt : {true, false}) {
    const int rank = is_prompt ? kMaxPackedLowrank : 48;
    Layer layer(format, DType::kBf16, DrawHeads(Data::kTypical, {{rank, rank}}, 2, DType::kBf16, 6),
                2, is_prompt);
    Sealer sealer(format, DType::kBf16, 3, &pool, GetParam());
    const SealJob job = layer.Job(5);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const RefSealed want = layer.Ref();
    for (bool is_key : {true, false}) {
      const StoredFactors f = ReadFactors(layer, 0, is_key);
      const Matrix r = ToMatrix(is_key ? want.heads[0].residual_k : want.heads[0].residual_v, rank);
      EXPECT_LE((r - f.a * f.b.transpose()).norm(), 2e-3 * r.norm()) << (is_key ? "K" : "V");
    }
  }
}

// An exact entry is off by the rounding of what it misses beside its code and the low-rank part,
// which without a difference of its own would put it farther off.
TEST_P(SealLowRankTest, ExactEntriesAreExactBesideFactors) {
  ThreadPool pool(2);
  for (const PackedFormat& format :
       {Uniform(Channel(2, 64), Token(2, 64), 8, 2, 0.04),
        Uniform(Channel(4, 0), LayerToken(4), 4, 2, 0.02), Codebooks(2, 0.05, 4)}) {
    Layer layer(format, DType::kBf16,
                DrawHeads(Data::kTypical, {{128, 80}, {64, 128}}, 3, DType::kBf16, 8), 3, true);
    Sealer sealer(format, DType::kBf16, 3, &pool, GetParam());
    const SealJob job = layer.Job(5);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const RefSealed want = layer.Ref();
    for (int h = 0; h < layer.n_heads(); ++h) {
      for (bool is_key : {true, false}) {
        SCOPED_TRACE(
            fmt::format("{} bits, head {}, {}", KeySide(format.codec).bits, h, is_key ? "K" : "V"));
        const StoredFactors f = ReadFactors(layer, h, is_key);
        const Matrix low = f.a * f.b.transpose();
        const std::vector<float>& x = is_key ? layer.heads[h].k : layer.heads[h].v;
        const std::vector<float> got =
            is_key ? ReadKeysRef(layer.Objects(h)) : ReadValuesRef(layer.Objects(h));
        const RefSealedHead& of_head = want.heads[h];
        double sum_error = 0, sum_low = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          if (!(is_key ? of_head.is_exact_k : of_head.is_exact_v)[i]) continue;
          const double loss = (is_key ? of_head.loss_k : of_head.loss_v)[i];
          const double part = low.data()[i], error = std::abs(double{x[i]} - got[i]);
          ASSERT_LE(error, 0x1p-8 * std::abs(loss - part) +
                               1e-6 * (std::abs(x[i]) + std::abs(loss) + std::abs(part)));
          sum_error += error;
          sum_low += std::abs(part);
        }
        EXPECT_GT(sum_low, 10 * sum_error);
      }
    }
  }
}

// The residual of constant channels is what F16 minima leave: equal rows, of rank 1.
TEST_P(SealLowRankTest, FactorsOfDegenerateResiduals) {
  ThreadPool pool(1);
  const PackedFormat format = Uniform(Channel(4, 64), Token(4, 64), 4, 4);
  for (Data data : {Data::kZero, Data::kConstant, Data::kHuge, Data::kOutlier, Data::kDenormal}) {
    Layer layer(format, DType::kF32, DrawHeads(data, {{48, 48}}, 2, DType::kF32, 4), 2, true);
    Sealer sealer(format, DType::kF32, 3, &pool, GetParam());
    const SealJob job = layer.Job(5);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const RefSealed want = layer.Ref();
    for (bool is_key : {true, false}) {
      const StoredFactors f = ReadFactors(layer, 0, is_key);
      ASSERT_TRUE(f.a.allFinite() && f.b.allFinite());
      if (data == Data::kZero) {
        EXPECT_EQ(f.a.cwiseAbs().maxCoeff(), 0);
        EXPECT_EQ(f.b.cwiseAbs().maxCoeff(), 0);
      }
      if (data == Data::kConstant) {
        const Matrix r = ToMatrix(is_key ? want.heads[0].residual_k : want.heads[0].residual_v, 48);
        EXPECT_LE((r - f.a * f.b.transpose()).norm(), 1e-2 * r.norm());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SealLowRankTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& suite) { return std::string(IsaName(suite.param)); });

}  // namespace
}  // namespace kvlathe
