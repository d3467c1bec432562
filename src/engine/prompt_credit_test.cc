#include "engine/prompt_credit.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

constexpr int kStep = 512;
constexpr int64_t kWhole = PromptCredit::kWhole;

// How many steps with so many decoding sequences it takes until a prompt may begin.
int StepsUntilAdmitted(PromptCredit* credit, int n_decoding, int64_t n_tokens) {
  for (int n_steps = 1; n_steps <= 1000; ++n_steps) {
    credit->BeginStep(n_decoding, 0);
    if (credit->Admit(n_tokens)) return n_steps;
  }
  return -1;
}

TEST(PromptCreditTest, WhereNothingDecodesPromptsFillTheStep) {
  PromptCredit credit(kStep);
  credit.BeginStep(0, 0);
  EXPECT_TRUE(credit.Admit(300));
  EXPECT_TRUE(credit.Admit(300));  // part of it has room
  EXPECT_FALSE(credit.Admit(1));
  credit.BeginStep(0, 100000);
  EXPECT_FALSE(credit.Admit(1));
  credit.BeginStep(0, kStep - 1);
  EXPECT_TRUE(credit.Admit(100000));
}

TEST(PromptCreditTest, TheMoreDecodeTheLongerPromptsWait) {
  int before = 0;
  for (const int n_decoding : {1, 2, 4}) {
    PromptCredit credit(kStep);
    credit.BeginStep(n_decoding, 0);
    ASSERT_TRUE(credit.Admit(kWhole));  // all that there is
    ASSERT_FALSE(credit.Admit(1));
    const int n_steps = StepsUntilAdmitted(&credit, n_decoding, 1024);
    EXPECT_EQ(n_steps, 1024 / (PromptCredit::kTokensOfAStep / n_decoding));
    EXPECT_GT(n_steps, before);
    before = n_steps;
  }
}

// However long it is and however many decode.
TEST(PromptCreditTest, EveryPromptBeginsAtLast) {
  for (const int n_decoding : {1, 4, 64, 1000}) {
    PromptCredit credit(kStep);
    credit.BeginStep(n_decoding, 0);
    ASSERT_TRUE(credit.Admit(int64_t{1} << 40));
    const int n_steps = StepsUntilAdmitted(&credit, n_decoding, int64_t{1} << 40);
    EXPECT_GT(n_steps, 1);
    EXPECT_LE(n_steps, 64) << n_decoding;
  }
}

TEST(PromptCreditTest, CreditIsSavedUpToItsBoundAndIsWholeAgainWhenNothingDecodes) {
  PromptCredit credit(kStep);
  for (int i = 0; i < 1000; ++i) credit.BeginStep(1, 0);
  EXPECT_TRUE(credit.Admit(kWhole - 1));
  EXPECT_TRUE(credit.Admit(1));
  EXPECT_FALSE(credit.Admit(1));
  credit.BeginStep(0, 0);
  credit.BeginStep(16, 0);
  EXPECT_TRUE(credit.Admit(kWhole));
  EXPECT_FALSE(credit.Admit(1));
}

}  // namespace
}  // namespace kvlathe
