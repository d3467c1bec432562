#include "evaluation/task_runs/task_shots.h"

#include <gtest/gtest.h>

#include <set>

namespace kvlathe {
namespace {

// "q0", "q1", ... with the answers " a0", " a1", ...
TaskFile FileOf(int n) {
  TaskFile file{.name = "set", .takes_shots = true};
  for (int i = 0; i < n; ++i) {
    TaskExample example;
    example.prompt = fmt::format("q{}", i);
    example.references = {fmt::format(" a{}", i)};
    file.examples.push_back(std::move(example));
  }
  return file;
}

// As many as words, and one for every blank line.
int CountWords(std::string_view text) {
  int n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    n += text[i] > ' ' && (i == 0 || text[i - 1] <= ' ');
    n += text.substr(i).starts_with("\n\n");
  }
  return n;
}

TEST(TaskShotsTest, ShotsBeginHalfAFileAwayAndNeverMeetTheQuestion) {
  for (size_t n = 2; n <= 12; ++n) {
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(ShotOf(i, n, 0), (i + n / 2) % n);
      std::set<size_t> shots;
      for (size_t k = 0; k + 1 < n; ++k) {
        shots.insert(ShotOf(i, n, k));
        // Each follows the one before it in the file, but for the question between.
        if (k > 0 && (ShotOf(i, n, k - 1) + 1) % n != i) {
          EXPECT_EQ(ShotOf(i, n, k), (ShotOf(i, n, k - 1) + 1) % n) << n << " " << i << " " << k;
        }
      }
      EXPECT_EQ(shots.size(), n - 1) << n << " " << i;
      EXPECT_FALSE(shots.contains(i)) << n << " " << i;
    }
  }
}

TEST(TaskShotsTest, SolvedQuestionsStandInTheirOrderWithBlankLinesBetween) {
  const auto with = AddShots(FileOf(5), 2, {.count = 2}, CountWords);
  ASSERT_TRUE(with.ok()) << with.status();
  ASSERT_EQ(with->examples.size(), 2u);
  EXPECT_EQ(with->examples[0].prompt, "q2 a2\n\nq3 a3\n\nq0");
  EXPECT_EQ(with->examples[1].prompt, "q3 a3\n\nq4 a4\n\nq1");
  EXPECT_EQ(with->examples[1].references[0], " a1");
  EXPECT_DOUBLE_EQ(with->mean_shots, 2);
  // The question itself is passed over.
  const auto all = AddShots(FileOf(4), 9, {.count = 3}, CountWords);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->examples.size(), 4u);
  EXPECT_EQ(all->examples[0].prompt, "q2 a2\n\nq3 a3\n\nq1 a1\n\nq0");
}

TEST(TaskShotsTest, WithoutARuleExamplesAreAsTheyWere) {
  const auto none = AddShots(FileOf(3), 3, {}, CountWords);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->examples[2].prompt, "q2");
  EXPECT_EQ(none->mean_shots, 0);
}

TEST(TaskShotsTest, PromptsOfChoicesGetTheSameShots) {
  TaskFile file = FileOf(2);
  for (TaskExample& example : file.examples) {
    example.choice_prompts = {example.prompt + " x", example.prompt + " y"};
    example.answer = 1;
  }
  EXPECT_EQ(SolvedText(file.examples[1]), "q1 y a1");
  const auto with = AddShots(file, 1, {.count = 1}, CountWords);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->examples[0].prompt, "q1 y a1\n\nq0");
  EXPECT_EQ(with->examples[0].choice_prompts,
            (std::vector<std::string>{"q1 y a1\n\nq0 x", "q1 y a1\n\nq0 y"}));
}

TEST(TaskShotsTest, TokensAreReachedWithTheFewestShots) {
  // Shots are counted alone and together; where counts do not add up, the whole prompt decides.
  const TokenCounter fewer_together = [](std::string_view text) {
    const int n = CountWords(text);
    return n - n / 6;
  };
  const TokenCounter more_together = [](std::string_view text) {
    const int n = CountWords(text);
    return n + n / 6;
  };
  for (const TokenCounter& count : {TokenCounter(CountWords), fewer_together, more_together}) {
    for (int min_tokens = 1; min_tokens <= 40; ++min_tokens) {
      const auto with = AddShots(FileOf(30), 30, {.min_tokens = min_tokens}, count);
      ASSERT_TRUE(with.ok()) << with.status();
      double n_shots = 0;
      for (const TaskExample& example : with->examples) {
        EXPECT_GE(count(example.prompt), min_tokens);
        n_shots += CountWords(example.prompt) / 3;  // two words and a blank line each
        const size_t last = example.prompt.rfind("\n\n");
        if (last == std::string::npos) continue;
        std::string one_less = example.prompt;
        const size_t begin = one_less.rfind("\n\n", last - 1);
        one_less.erase(begin == std::string::npos ? 0 : begin + 2,
                       last + 2 - (begin == std::string::npos ? 0 : begin + 2));
        EXPECT_LT(count(one_less), min_tokens) << example.prompt;
      }
      EXPECT_NEAR(with->mean_shots, n_shots / 30, 1e-9);
    }
  }
}

TEST(TaskShotsTest, WhatCannotBeGivenIsRefused) {
  const std::pair<ShotRule, const char*> cases[] = {
      {{.count = 3}, "3 questions, so that one can have 2 shots at most, not 3"},
      {{.min_tokens = 100}, "example 1: the prompt has 7 tokens with the 2 shots"},
  };
  for (const auto& [rule, needle] : cases) {
    const auto with = AddShots(FileOf(3), 1, rule, CountWords);
    EXPECT_EQ(with.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(with.status()).find(needle), std::string::npos) << with.status();
  }
  EXPECT_TRUE(AddShots(FileOf(3), 1, {.count = 2}, CountWords).ok());
  EXPECT_FALSE(CheckShots(FileOf(1), {.min_tokens = 1}).ok());
  TaskFile without = FileOf(3);
  without.takes_shots = false;
  EXPECT_TRUE(CheckShots(without, {}).ok());
  const Status refused = CheckShots(without, {.count = 1});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(refused).find("takes no shots"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
