// The parts that the generators share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/prose.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

TEST(BelongsTo, GivesAnEighthToTestAndTheRestToTrain) {
  int n_test = 0;
  for (int i = 0; i < 8000; ++i) {
    const std::string content = std::to_string(i);
    EXPECT_NE(BelongsTo(TaskSplit::kTest, content), BelongsTo(TaskSplit::kTrain, content));
    n_test += BelongsTo(TaskSplit::kTest, content);
  }
  EXPECT_NEAR(n_test, 1000, 120);
}

// An example of n units of `unit` tokens each; a token is a character.
TaskExample Fit(int length, UnitRange range, int unit, int* calls = nullptr) {
  const TokenCounter count = [&](std::string_view text) {
    if (calls != nullptr) ++*calls;
    return static_cast<int>(text.size());
  };
  const TaskRequest request{TaskSplit::kTest, length, 1, count};
  return FitLength(request, range, [&](int n) {
    return TaskExample{.prompt = std::string(n * unit, 'x'), .references = {"!"}};
  });
}

TEST(FitLength, TakesTheMostThatFits) {
  for (const int guess : {1, 5, 10, 40, 1000}) {
    int calls = 0;
    EXPECT_EQ(Fit(101, {.tokens = guess}, 10, &calls).prompt.size(), 100u) << guess;
    EXPECT_LE(calls, 4) << guess;
    EXPECT_EQ(Fit(100, {.tokens = guess}, 10).prompt.size(), 90u) << guess;
  }
}

TEST(FitLength, KeepsToTheRange) {
  EXPECT_EQ(Fit(1000, {.max = 7}, 10).prompt.size(), 70u);
  EXPECT_EQ(Fit(1000, {.min = 3, .max = 3}, 10).prompt.size(), 30u);
  // Too long even so: the shortest there is.
  EXPECT_EQ(Fit(20, {.min = 3}, 10).prompt.size(), 30u);
}

TEST(Prose, HasManySentencesAndAWideVocabulary) {
  std::set<std::string> sentences, words;
  Random rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string sentence;
    AppendSentence(ProseStyle::kPlain, rng, sentence);
    for (size_t at = 0; at < sentence.size();) {
      const size_t end = std::min(sentence.find(' ', at), sentence.size());
      words.insert(sentence.substr(at, end - at));
      at = end + 1;
    }
    sentences.insert(std::move(sentence));
  }
  EXPECT_GT(sentences.size(), 17000u);
  EXPECT_GE(words.size(), 300u);
}

TEST(Prose, StylesSayTheSame) {
  Random natural_rng(3), plain_rng(3);
  std::string natural, plain;
  AppendSentences(ProseStyle::kNatural, 200, natural_rng, natural);
  AppendSentences(ProseStyle::kPlain, 200, plain_rng, plain);
  EXPECT_EQ(natural.find(" ."), std::string::npos);
  EXPECT_EQ(natural.find(" ,"), std::string::npos);
  EXPECT_TRUE(std::isupper(static_cast<unsigned char>(natural[0])));
  std::string letters[2];
  for (const char c : natural) {
    if (c != ' ') letters[0] += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const char c : plain) {
    if (c != ' ') letters[1] += c;
  }
  EXPECT_EQ(letters[0], letters[1]);
}

// Sentences that would pass for a task's facts or markers would change its answer.
TEST(Prose, NeverLooksLikeAFact) {
  Random rng(5);
  std::string text;
  AppendSentences(ProseStyle::kPlain, 20000, rng, text);
  for (const char* part : {" is ", "pass key", "main point", "summary", "order", "where", "$"}) {
    EXPECT_EQ(text.find(std::string(" ") + part + " "), std::string::npos) << part;
  }
  EXPECT_EQ(text.find_first_of("0123456789\n:?$"), std::string::npos);
}

TEST(Words, StandOnceInEachList) {
  for (const WordList list :
       {CommonWords(), Adjectives(), Nouns(), Animals(), Colours(), Places(), Materials(), Items(),
        Containers(), Rooms(), Buildings(), Aspects(), GoodWords(), BadWords(), FieldTypes()}) {
    std::set<std::string_view> seen;
    for (const std::string_view word : list) EXPECT_TRUE(seen.insert(word).second) << word;
  }
  EXPECT_GE(CommonWords().size(), 480u);
  EXPECT_GE(GoodWords().size(), 25u);
  EXPECT_GE(BadWords().size(), 25u);
}

TEST(Words, PraiseAndBlameDiffer) {
  for (const std::string_view word : GoodWords()) {
    EXPECT_EQ(std::ranges::count(BadWords(), word), 0) << word;
  }
}

}  // namespace
}  // namespace kvlathe
