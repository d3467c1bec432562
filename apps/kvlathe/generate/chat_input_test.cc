#include "kvlathe/generate/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Kind = ChatInput::Kind;

TEST(ParseChatInput, TakesWhatBeginsWithNoSlashAsItIs) {
  for (const char* text : {"Who are you?", "", " /exit", "a // b\\", "two\nlines "}) {
    const auto input = ParseChatInput(text);
    ASSERT_TRUE(input.ok());
    EXPECT_EQ(input->kind, Kind::kMessage);
    EXPECT_EQ(input->text, text);
  }
}

TEST(ParseChatInput, TwoSlashesAreAMessageWithOne) {
  for (const auto& [text, message] : {std::pair("//exit", "/exit"), std::pair("///", "//")}) {
    const auto input = ParseChatInput(text);
    ASSERT_TRUE(input.ok());
    EXPECT_EQ(input->kind, Kind::kMessage);
    EXPECT_EQ(input->text, message);
  }
}

TEST(ParseChatInput, KnowsTheCommands) {
  const std::vector<std::tuple<const char*, Kind, const char*>> inputs = {
      {"/help", Kind::kHelp, ""},          {"/clear ", Kind::kClear, ""},
      {"/exit\t", Kind::kExit, ""},        {"/rate 0.5", Kind::kRate, "0.5"},
      {"/rate  .25 ", Kind::kRate, ".25"}, {"/rate", Kind::kRate, ""}};
  for (const auto& [text, kind, argument] : inputs) {
    const auto input = ParseChatInput(text);
    ASSERT_TRUE(input.ok()) << text;
    EXPECT_EQ(input->kind, kind) << text;
    EXPECT_EQ(input->text, argument) << text;
  }
}

TEST(ParseChatInput, RefusesOtherCommandsAndNamesHelp) {
  for (const char* text :
       {"/", "/clera", "/exits", "/rates 1", "/etc/passwd is a file", "/clear all", "/exit\nnow"}) {
    const auto input = ParseChatInput(text);
    EXPECT_EQ(input.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(MessageOf(input.status()), HasSubstr("/help")) << text;
  }
}

TEST(ChatHelp, HasEveryCommandAndKey) {
  for (const char* what : {"/help", "/clear", "/rate P", "/exit", "Ctrl-C", "Ctrl-D"}) {
    EXPECT_THAT(ChatHelp(), HasSubstr(what));
  }
}

TEST(TakeContinuation, TakesOneBackslashAtTheEnd) {
  for (const auto& [line, rest, goes_on] :
       {std::tuple("first\\", "first", true), std::tuple("\\", "", true),
        std::tuple("a\\b", "a\\b", false), std::tuple("", "", false),
        std::tuple("two\\\\", "two\\", true)}) {
    std::string taken = line;
    EXPECT_EQ(TakeContinuation(&taken), goes_on) << line;
    EXPECT_EQ(taken, rest);
  }
}

}  // namespace
}  // namespace kvlathe
