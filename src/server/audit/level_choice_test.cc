#include "server/audit/level_choice.h"

#include <gtest/gtest.h>

namespace kvlathe::server {
namespace {

ReplayScore Positions(int64_t n, double kl) {
  return {.kl = std::vector<double>(static_cast<size_t>(n), kl), .n_agree = n, .first_parted = {}};
}

constexpr int64_t kEnough = LevelChoice::kEnoughPositions;

// The first has 200 bytes, then `none`, then two that are smaller.
LevelChoice Choice() {
  return LevelChoice(
      {{.n_bytes = 200}, {.n_bytes = 1000, .is_none = true}, {.n_bytes = 120}, {.n_bytes = 80}},
      0.02);
}

TEST(LevelChoice, GoesToTheSmallestCacheWithinTheBound) {
  LevelChoice choice = Choice();
  EXPECT_EQ(choice.chosen(), 0);
  EXPECT_EQ(choice.Add(2, Positions(kEnough, 0.01)), 2);
  EXPECT_EQ(choice.Add(3, Positions(kEnough, 0.03)), std::nullopt);
  EXPECT_EQ(choice.chosen(), 2);
  EXPECT_EQ(choice.Add(3, Positions(2 * kEnough, 0.01)), 3);  // together 0.0167
  EXPECT_EQ(choice.Add(3, Positions(2 * kEnough, 0.5)), 2);
}

TEST(LevelChoice, WaitsForEnoughPositions) {
  LevelChoice choice = Choice();
  EXPECT_EQ(choice.Add(3, Positions(kEnough - 1, 0.001)), std::nullopt);
  EXPECT_EQ(choice.Add(3, Positions(1, 0.001)), 3);
}

TEST(LevelChoice, LeavesTheFirstLevelForTheUncompressedOneWhereNothingIsWithin) {
  LevelChoice choice = Choice();
  EXPECT_EQ(choice.Add(0, Positions(kEnough - 1, 0.5)), std::nullopt);  // not enough to say so
  EXPECT_EQ(choice.Add(0, Positions(1, 0.5)), 1);
}

TEST(LevelChoice, StaysAtTheFirstWhereNothingIsWithinAndNothingUncompressed) {
  LevelChoice choice({{.n_bytes = 200}, {.n_bytes = 100}}, 0.02);
  EXPECT_EQ(choice.Add(1, Positions(kEnough, 0.5)), std::nullopt);
  EXPECT_EQ(choice.Add(0, Positions(kEnough, 0.5)), std::nullopt);
  EXPECT_EQ(choice.chosen(), 0);
}

TEST(LevelChoice, ForgetsWhatIsOld) {
  LevelChoice choice({{.n_bytes = 200}, {.n_bytes = 100}}, 0.02);
  for (int i = 0; i < 100; ++i) choice.Add(1, Positions(1000, 0.5));
  EXPECT_EQ(choice.chosen(), 0);
  for (int i = 0; i < 100; ++i) choice.Add(1, Positions(1000, 0.001));
  EXPECT_EQ(choice.chosen(), 1);
  EXPECT_LE(choice.n_positions(1), 2 * LevelChoice::kNewestPositions);
}

}  // namespace
}  // namespace kvlathe::server
