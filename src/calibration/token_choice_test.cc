#include "calibration/token_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::ElementsAre;

TEST(IsHeldBackTest, EveryFifthOrTheLastOfTwoToFour) {
  EXPECT_FALSE(IsHeldBack(0, 1));
  for (const int64_t n : {2, 3, 4}) {
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(IsHeldBack(i, n), i == n - 1);
  }
  for (const int64_t n : {5, 6, 21}) {
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(IsHeldBack(i, n), i % 5 == 4);
  }
}

TEST(CalibrationTokensTest, FallWithTheRootOfTheWeightsOfLargeModels) {
  EXPECT_EQ(CalibrationTokens(1'000'000), 24576);
  EXPECT_EQ(CalibrationTokens(int64_t{1} << 27), 24576);
  EXPECT_EQ(CalibrationTokens(int64_t{1} << 29), 12288);
  EXPECT_EQ(CalibrationTokens(1'540'000'000), 7255);  // Qwen2.5-Coder-1.5B
  EXPECT_EQ(CalibrationTokens(int64_t{1} << 36), 3072);
}

// Sequences of 4 tokens that say which they are; a shorter one is last.
TokenSequences Numbered(int n) {
  TokenSequences sequences;
  for (int i = 0; i < n; ++i) sequences.emplace_back(i + 1 < n ? 4 : 2, i);
  return sequences;
}

std::vector<int32_t> NumbersOf(const TokenSequences& sequences) {
  std::vector<int32_t> numbers;
  for (const auto& sequence : sequences) numbers.push_back(sequence.front());
  return numbers;
}

TEST(ChooseSequencesTest, TheyComeFromAllOverTheText) {
  EXPECT_THAT(NumbersOf(ChooseSequences(Numbered(21), 20)), ElementsAre(0, 4, 8, 12, 16));
  EXPECT_THAT(NumbersOf(ChooseSequences(Numbered(21), 21)), ElementsAre(0, 4, 8, 12, 16));
  EXPECT_THAT(NumbersOf(ChooseSequences(Numbered(21), 22)), ElementsAre(0, 3, 7, 10, 14, 17));
}

TEST(ChooseSequencesTest, AShortTextIsTakenWholeAndOneSequenceAtLeast) {
  EXPECT_THAT(NumbersOf(ChooseSequences(Numbered(3), 100)), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf(ChooseSequences(Numbered(3), 1)), ElementsAre(0));
  EXPECT_TRUE(ChooseSequences({}, 100).empty());
}

}  // namespace
}  // namespace kvlathe
