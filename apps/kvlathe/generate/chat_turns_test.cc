#include "kvlathe/generate/chat_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A token for every letter.
StatusOr<std::vector<int32_t>> TokenizeLetters(std::span<const ChatMessage> messages) {
  std::vector<int32_t> tokens;
  for (const ChatMessage& message : messages) {
    tokens.insert(tokens.end(), message.content.begin(), message.content.end());
  }
  return tokens;
}

std::vector<std::string> ContentsOf(const std::vector<ChatMessage>& messages) {
  std::vector<std::string> contents;
  for (const ChatMessage& message : messages) contents.push_back(message.content);
  return contents;
}

// 2 tokens of the system, two turns of 6 and a message of 3.
std::vector<ChatMessage> TwoTurns() {
  return {{"system", "sy"}, {"user", "aaa"},      {"assistant", "AAA"},
          {"user", "bbb"},  {"assistant", "BBB"}, {"user", "ccc"}};
}

TEST(FitChat, KeepsAConversationThatLeavesRoomForTheAnswer) {
  const auto fitted = FitChat(TwoTurns(), 20, 3, TokenizeLetters);
  ASSERT_TRUE(fitted.ok());
  EXPECT_EQ(fitted->n_dropped, 0);
  EXPECT_EQ(fitted->messages.size(), 6u);
  EXPECT_EQ(fitted->prompt.size(), 17u);
}

TEST(FitChat, DropsWholeTurnsFromTheOldestAndKeepsTheSystemMessage) {
  const auto one = FitChat(TwoTurns(), 20, 4, TokenizeLetters);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->n_dropped, 1);
  EXPECT_THAT(ContentsOf(one->messages), ElementsAre("sy", "bbb", "BBB", "ccc"));
  EXPECT_EQ(one->prompt, *TokenizeLetters(one->messages));
  const auto both = FitChat(TwoTurns(), 14, 4, TokenizeLetters);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->n_dropped, 2);
  EXPECT_THAT(ContentsOf(both->messages), ElementsAre("sy", "ccc"));
}

TEST(FitChat, DropsNoMoreThanIsNeededWithoutASystemMessage) {
  std::vector<ChatMessage> messages = TwoTurns();
  messages.erase(messages.begin());
  const auto fitted = FitChat(messages, 12, 3, TokenizeLetters);
  ASSERT_TRUE(fitted.ok());
  EXPECT_THAT(ContentsOf(fitted->messages), ElementsAre("bbb", "BBB", "ccc"));
}

TEST(FitChat, AMessageAloneNeedsRoomForOneToken) {
  const auto fitted = FitChat(TwoTurns(), 6, 4, TokenizeLetters);
  ASSERT_TRUE(fitted.ok());
  EXPECT_THAT(ContentsOf(fitted->messages), ElementsAre("sy", "ccc"));
  const auto refused = FitChat(TwoTurns(), 5, 4, TokenizeLetters);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("prompt of 5 tokens"));
}

TEST(FitChat, PassesAnErrorOfTheTemplateOn) {
  const auto refuse = [](std::span<const ChatMessage>) -> StatusOr<std::vector<int32_t>> {
    return Error(StatusCode::kInvalidArgument, "no such role");
  };
  EXPECT_EQ(MessageOf(FitChat(TwoTurns(), 100, 4, refuse).status()), "no such role");
}

TEST(DroppedTurnsText, CountsTurns) {
  EXPECT_EQ(DroppedTurnsText(3, 2048),
            "the conversation no longer fits the context of 2048 tokens; the 3 oldest turns were "
            "dropped");
  EXPECT_THAT(DroppedTurnsText(1, 64), HasSubstr("; the oldest turn was dropped"));
}

TEST(BeginsWith, ComparesTheWholePrefix) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_TRUE(BeginsWith(tokens, {}));
  EXPECT_TRUE(BeginsWith(tokens, std::vector<int32_t>{1, 2, 3}));
  EXPECT_FALSE(BeginsWith(tokens, std::vector<int32_t>{1, 3}));
  EXPECT_FALSE(BeginsWith(tokens, std::vector<int32_t>{1, 2, 3, 4}));
}

TEST(CutToCache, CountsAllThatIsCachedAsPrompt) {
  Session session;
  session.tokens = {1, 2, 3, 4, 5, 6, 7};
  session.turn_ends = {2, 4, 5, 7};
  session.n_draws = 9;
  ASSERT_TRUE(CutToCache(6, &session));
  EXPECT_THAT(session.tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(session.turn_ends, ElementsAre(2, 2, 6, 6));
  EXPECT_EQ(session.n_draws, 0u);
}

TEST(CutToCache, RefusesAFirstTurnThatWasNotReadToItsEnd) {
  Session session;
  session.tokens = {1, 2, 3, 4};
  session.turn_ends = {4, 4};
  EXPECT_FALSE(CutToCache(3, &session));
  EXPECT_TRUE(CutToCache(4, &session));
  Session empty;
  EXPECT_FALSE(CutToCache(0, &empty));
}

TEST(IsWorthContinuing, WithoutPointsWhereAStepEndsAlways) {
  const CacheLayout layout;
  EXPECT_TRUE(IsWorthContinuing(layout, 10, 20, 21));
  EXPECT_TRUE(IsWorthContinuing(layout, 10, 20, 100000));
}

TEST(IsWorthContinuing, TokenByTokenOnlyAFewTokensOfALongConversation) {
  CacheLayout layout;
  layout.retention = RetentionPlan{.votes = RetentionPlan::Votes::kAll, .keep = 0.5, .interval = 1};
  ASSERT_TRUE(layout.DropsEntries());
  EXPECT_TRUE(IsWorthContinuing(layout, 10, 990, 1000));
  EXPECT_FALSE(IsWorthContinuing(layout, 10, 900, 1000));
  EXPECT_FALSE(IsWorthContinuing(layout, 10, 20, 30));
  EXPECT_TRUE(IsWorthContinuing(layout, 10, 29, 30));
  layout.retention->interval = 64;
  EXPECT_TRUE(IsWorthContinuing(layout, 10, 900, 1000));
}

}  // namespace
}  // namespace kvlathe
