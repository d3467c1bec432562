#include "analysis/bases/similarity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace kvlathe {
namespace {

constexpr int kDim = 4;

// A rotation by an angle in the plane of axes i and j, row-major.
std::vector<float> Turned(int i, int j, double angle) {
  std::vector<float> map(kDim * kDim);
  for (int c = 0; c < kDim; ++c) map[c * kDim + c] = 1;
  const auto cosine = static_cast<float>(std::cos(angle));
  const auto sine = static_cast<float>(std::sin(angle));
  map[i * kDim + i] = map[j * kDim + j] = cosine;
  map[j * kDim + i] = sine;
  map[i * kDim + j] = -sine;
  return map;
}

BasisAnalysis AnalysisOf(const std::vector<float>& qk, const std::vector<float>& v) {
  BasisAnalysis analysis;
  analysis.shape = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = kDim};
  analysis.heads.push_back({.query_basis = qk, .key_basis = qk, .value_basis = v});
  analysis.spectra.push_back({{4, 3, 2, 1}, {2, 2, 1, 1}});  // squares 16, 9, 4, 1 and 4, 4, 1, 1
  return analysis;
}

const std::vector<HeadRanks> kHalf = {{.rank_k = 2, .rank_v = 2}};

TEST(CompareRotations, FindsEqualOnesEqualWhateverTheirSigns) {
  std::vector<float> flipped = Turned(0, 1, 0);
  for (int c = 0; c < kDim; ++c) flipped[c * kDim + 1] *= -1;
  const auto similarity = CompareRotations(AnalysisOf(flipped, Turned(0, 1, 0.3)),
                                           AnalysisOf(Turned(0, 1, 0), Turned(0, 1, 0.3)), kHalf);
  ASSERT_TRUE(similarity.ok()) << similarity.status();
  for (const RotationSimilarity& side : {similarity->qk, similarity->v}) {
    EXPECT_NEAR(side.kept, 1, 1e-6);
    EXPECT_NEAR(side.lost, 1, 1e-6);
    EXPECT_NEAR(side.overlap, 1, 1e-6);
    EXPECT_NEAR(side.element_difference, 0, 1e-6);
  }
}

// A turn inside the first two directions changes all of their elements and nothing that is stored.
TEST(CompareRotations, TurnsInsideWhatIsKeptLoseNothing) {
  const auto similarity = CompareRotations(AnalysisOf(Turned(0, 1, 0.7), Turned(0, 1, 0)),
                                           AnalysisOf(Turned(0, 1, 0), Turned(0, 1, 0)), kHalf);
  ASSERT_TRUE(similarity.ok()) << similarity.status();
  EXPECT_NEAR(similarity->qk.kept, 1, 1e-6);
  EXPECT_NEAR(similarity->qk.overlap, 1, 1e-6);
  const double difference = (2 * std::sin(0.7) + 2 * (1 - std::cos(0.7))) / (kDim * kDim);
  EXPECT_NEAR(similarity->qk.element_difference, difference, 1e-6);
}

TEST(CompareRotations, CountsTheEnergyThatIsLost) {
  // This one's second direction lies between the other's second (9) and third (4).
  const double angle = std::numbers::pi / 4;
  const auto similarity = CompareRotations(AnalysisOf(Turned(1, 2, angle), Turned(1, 2, angle)),
                                           AnalysisOf(Turned(0, 1, 0), Turned(0, 1, 0)), kHalf);
  ASSERT_TRUE(similarity.ok()) << similarity.status();
  EXPECT_NEAR(similarity->qk.kept, (16 + 0.5 * 9 + 0.5 * 4) / 25.0, 1e-6);
  EXPECT_NEAR(similarity->qk.lost, (0.5 * 9 + 0.5 * 4 + 1) / 5.0, 1e-6);
  EXPECT_NEAR(similarity->qk.overlap, 0.75, 1e-6);
  EXPECT_NEAR(similarity->v.kept, (4 + 0.5 * 4 + 0.5) / 8.0, 1e-6);
}

TEST(CompareRotations, LosesNothingAtFullRank) {
  const auto similarity = CompareRotations(AnalysisOf(Turned(1, 2, 0.5), Turned(0, 3, 1)),
                                           AnalysisOf(Turned(0, 1, 0), Turned(1, 3, 1)),
                                           {{.rank_k = kDim, .rank_v = kDim}});
  ASSERT_TRUE(similarity.ok()) << similarity.status();
  EXPECT_NEAR(similarity->qk.kept, 1, 1e-6);
  EXPECT_EQ(similarity->qk.lost, 1);
  EXPECT_EQ(similarity->v.lost, 1);
}

TEST(CompareRotations, RefusesWhatIsNoRotationAndOtherShapes) {
  std::vector<float> stretched = Turned(0, 1, 0.2);
  for (float& x : stretched) x *= 2;
  const BasisAnalysis rotations = AnalysisOf(Turned(0, 1, 0), Turned(0, 1, 0));
  const BasisAnalysis maps = AnalysisOf(Turned(0, 1, 0), stretched);
  EXPECT_EQ(CompareRotations(maps, rotations, kHalf).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CompareRotations(rotations, maps, kHalf).status().code(), StatusCode::kInvalidArgument);
  BasisAnalysis other = rotations;
  other.shape.n_heads = 2;
  EXPECT_EQ(CompareRotations(rotations, other, kHalf).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
