#include "engine/drafts/ngram_drafter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

using TextTokens = std::vector<int32_t>;

// A text is generated behind its first n_given tokens; what a drafter would save.
struct SavedSteps {
  int n_steps = 0;
  int n_drafted = 0;
  int n_accepted = 0;
};

SavedSteps DraftOver(const TextTokens& text, int n_given, DraftOptions options = {}) {
  NgramDrafter drafter(options);
  SavedSteps saved;
  for (size_t n_known = n_given; n_known < text.size(); ++saved.n_steps) {
    const TextTokens draft = drafter.Propose(std::span(text).first(n_known), n_given, kMostDrafted);
    EXPECT_LE(std::ssize(draft), options.n_tokens);
    saved.n_drafted += static_cast<int>(draft.size());
    for (const int32_t token : draft) {
      if (n_known + 1 >= text.size() || token != text[n_known]) break;
      ++n_known;
      ++saved.n_accepted;
    }
    ++n_known;
  }
  return saved;
}

TextTokens RandomText(int n, uint64_t seed, int n_words = 1000) {
  Random random(seed);
  TextTokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(random.Below(n_words)));
  return tokens;
}

TextTokens Chained(TextTokens a, const TextTokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(NgramDrafter, ProposesWhatFollowedTheNewestOccurrence) {
  NgramDrafter drafter({.n_tokens = 3, .min_match = 2, .max_match = 4});
  EXPECT_EQ(drafter.Propose(TextTokens{1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 2, 3}, 12, 8),
            (TextTokens{5, 6, 7}));
  // A longer occurrence comes before a newer one.
  NgramDrafter longer({.n_tokens = 3, .min_match = 1, .max_match = 4});
  EXPECT_EQ(longer.Propose(TextTokens{1, 2, 3, 4, 9, 8, 3, 5, 6, 7, 2, 3}, 12, 8),
            (TextTokens{4, 9, 8}));
  NgramDrafter none({.n_tokens = 3, .min_match = 3, .max_match = 4});
  EXPECT_TRUE(none.Propose(TextTokens{1, 2, 3, 4, 9, 2, 3}, 7, 8).empty());
  EXPECT_TRUE(NgramDrafter({}).Propose(TextTokens{1}, 1, 8).empty());
  EXPECT_TRUE(NgramDrafter({}).Propose(TextTokens{1, 2, 1, 2}, 4, 0).empty());
}

TEST(NgramDrafter, GoesOnBehindTheEndOfWhatItCopies) {
  NgramDrafter drafter({.n_tokens = 3, .min_match = 1, .max_match = 1});
  EXPECT_EQ(drafter.Propose(TextTokens{3, 7, 5, 7}, 4, 8), (TextTokens{5, 7, 5}));
}

TEST(NgramDrafter, IsRightAboutATextThatRepeatsItself) {
  const TextTokens period = RandomText(37, 1);
  TextTokens text = period;
  for (int i = 0; i < 12; ++i) text = Chained(text, period);
  const SavedSteps saved = DraftOver(text, 60);
  // Of the last draft some is behind the end.
  EXPECT_GE(saved.n_accepted, saved.n_drafted - 8);
  EXPECT_LT(saved.n_steps, (std::ssize(text) - 60) / 6);
}

TEST(NgramDrafter, CopiesAPromptWithChanges) {
  TextTokens prompt = RandomText(1500, 2), answer = prompt;
  for (int i = 20; i < 1500; i += 43) answer[i] = 2000;
  const SavedSteps saved = DraftOver(Chained(prompt, answer), 1500);
  EXPECT_GT(saved.n_accepted, 1100);
  EXPECT_GT(saved.n_accepted, saved.n_drafted * 7 / 10);
  EXPECT_LT(saved.n_steps, 400);
}

// Words that come again often, each time before another one.
TEST(NgramDrafter, CostsLittleWhereNothingRepeatsItself) {
  const SavedSteps saved = DraftOver(RandomText(4000, 3, 40), 100);
  EXPECT_LT(saved.n_drafted, 200);
}

TEST(NgramDrafter, BeginsAgainWhenTheTextDoes) {
  const TextTokens first = RandomText(600, 4, 30), again = RandomText(400, 5);
  const SavedSteps saved = DraftOver(Chained(first, Chained(again, again)), 10);
  EXPECT_GT(saved.n_accepted, 330);
}

TEST(NgramDrafter, ForgetsTheOldestOfALongText) {
  TextTokens text = RandomText(200'000, 6, 1 << 30);
  const int n_given = static_cast<int>(text.size());
  const TextTokens last(text.end() - 1000, text.end());
  const SavedSteps saved = DraftOver(Chained(text, last), n_given + 5);
  EXPECT_GT(saved.n_accepted, 800);
}

TEST(NgramDrafter, DoesNotDependOnHowOftenItIsAsked) {
  const TextTokens text = RandomText(300, 7, 12);
  NgramDrafter often({}), once({});
  TextTokens of_often;
  for (int n = 1; n <= 300; ++n) of_often = often.Propose(std::span(text).first(n), 50, 8);
  EXPECT_EQ(once.Propose(text, 50, 8), of_often);
}

TEST(DraftOptions, ReadsWhatMayBeWritten) {
  const auto parse = [](std::string_view text) { return DraftOptions::Parse(text).value(); };
  EXPECT_FALSE(parse("none").has_value());
  EXPECT_EQ(parse("ngram"), DraftOptions());
  EXPECT_EQ(parse("ngram:tokens=5,min=1,max=3"), (DraftOptions{5, 1, 3}));
  EXPECT_EQ(parse("ngram:min=6"), (DraftOptions{8, 6, 6}));
  EXPECT_EQ(parse("ngram:tokens=32"), (DraftOptions{32, 2, 4}));
}

TEST(DraftOptions, RefusesTheRest) {
  for (const char* text : {"",
                           "ngrams",
                           "ngram:",
                           "ngram:tokens",
                           "ngram:tokens=",
                           "ngram:tokens=0",
                           "NGRAM",
                           "ngram:tokens=33",
                           "ngram:tokens=-1",
                           "ngram:min=0",
                           "ngram:max=17",
                           "ngram:min=4,max=3",
                           "ngram:tokens=8,",
                           "ngram:,tokens=8",
                           "ngram:size=3",
                           "ngram:tokens=8;min=2",
                           "model",
                           "ngram:tokens=99999999999",
                           "ngram:tokens=4.5",
                           "none:tokens=3",
                           "ngram:=4",
                           "ngram,"}) {
    const Status status = DraftOptions::Parse(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(status).find("tokens=8,min=2,max=4"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace kvlathe
