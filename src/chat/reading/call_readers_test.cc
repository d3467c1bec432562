#include "chat/reading/call_readers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Parsed {
  std::string content, thoughts;
  std::vector<std::string> calls;  // NAME(ARGUMENTS)

  bool operator==(const Parsed&) const = default;
};

using MakeParser = std::function<std::unique_ptr<AnswerReader>()>;

// The answer in pieces that end at `cuts`. Names come whole with the first delta of a call, and
// calls in their order.
Parsed ParseCut(const MakeParser& make, const std::string& text, const std::vector<size_t>& cuts) {
  const auto parser = make();
  Parsed parsed;
  std::vector<std::string> names, arguments;
  const auto take = [&](const AnswerDelta& delta) {
    parsed.content += delta.content;
    parsed.thoughts += delta.thoughts;
    for (const AnswerDelta::Call& call : delta.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.call_idx, static_cast<int>(names.size()));
        names.push_back(call.name);
        arguments.emplace_back();
      }
      EXPECT_EQ(call.call_idx, static_cast<int>(names.size()) - 1);
      arguments.back() += call.arguments;
    }
  };
  size_t begin = 0;
  for (const size_t end : cuts) {
    take(parser->Push(std::string_view(text).substr(begin, end - begin)));
    begin = end;
  }
  take(parser->Push(std::string_view(text).substr(begin)));
  take(parser->Finish());
  for (size_t i = 0; i < names.size(); ++i) {
    parsed.calls.push_back(names[i] + "(" + arguments[i] + ")");
  }
  return parsed;
}

// Whole, cut once at every byte, and byte by byte: always the same.
Parsed Parse(const MakeParser& make, const std::string& text) {
  const Parsed whole = ParseCut(make, text, {});
  std::vector<size_t> all;
  for (size_t i = 1; i < text.size(); ++i) {
    EXPECT_EQ(ParseCut(make, text, {i}), whole) << text << " cut at " << i;
    all.push_back(i);
  }
  EXPECT_EQ(ParseCut(make, text, all), whole) << text;
  return whole;
}

// Qwen's calls.
CallFormat TaggedFormat() {
  CallFormat format;
  format.call_begin = "<tool_call>\n{\"name\": \"";
  format.name_end = "\", \"arguments\": ";
  format.call_end = "}\n</tool_call>";
  format.between = "\n";
  format.is_object = true;
  format.name_key = "name";
  format.arguments_key = "arguments";
  return format;
}

const ToolSchemas kTools = {{"add", nullptr}, {"weather", nullptr}};

Parsed ParseTagged(const std::string& text, bool thinks = false) {
  AnswerFormat format;
  format.calls = TaggedFormat();
  if (thinks) format.thoughts = ThoughtFormat{"<think>\n", "\n</think>\n\n"};
  return Parse([=] { return MakeAnswerReader(format, kTools); }, text);
}

Parsed ParseJson(const std::string& text) {
  return Parse([] { return MakeJsonCallReader(kTools); }, text);
}

TEST(TaggedCallReaderTest, TextIsContent) {
  for (const char* text : {"", "Hello, <b>world</b>!\n", "a <tool", "  \n x \n", "{\"name\": 1}"}) {
    const Parsed parsed = ParseTagged(text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_THAT(parsed.calls, IsEmpty());
  }
}

TEST(TaggedCallReaderTest, ReadsCallsBetweenContent) {
  const Parsed parsed = ParseTagged(
      "I look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": "
      "\"}</tool_call>\"}}\n"
      "</tool_call>\n<tool_call>{\"arguments\": {}, \"name\": \"weather\"}</tool_call>\n");
  EXPECT_EQ(parsed.content, "I look.");
  EXPECT_THAT(parsed.calls,
              ElementsAre("add({\"a\": 1, \"b\": \"}</tool_call>\"})", "weather({})"));
}

TEST(TaggedCallReaderTest, ArgumentsMayBeAbsentOrAString) {
  EXPECT_THAT(ParseTagged("<tool_call>{\"name\": \"add\"}</tool_call>").calls,
              ElementsAre("add({})"));
  EXPECT_THAT(
      ParseTagged("<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>")
          .calls,
      ElementsAre("add({\"a\": 1})"));
  EXPECT_THAT(ParseTagged("<tool_call>{\"name\": \"add\", \"arguments\": null}</tool_call>").calls,
              ElementsAre("add({})"));
}

TEST(TaggedCallReaderTest, WhatIsNoCallStaysContent) {
  for (const char* text :
       {"<tool_call>add(1, 2)</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
        "x <tool_call>{\"arguments\": {}}</tool_call> y", "<tool_call>{\"name\": \"add\""}) {
    const Parsed parsed = ParseTagged(text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_THAT(parsed.calls, IsEmpty());
  }
}

TEST(TaggedCallReaderTest, ACallThatIsCutOffKeepsItsArguments) {
  EXPECT_THAT(ParseTagged("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1").calls,
              ElementsAre("add({\"a\": 1)"));
}

// As Qwen2.5-Coder writes calls, whose template asks for marks.
TEST(TaggedCallReaderTest, ACallMayForgetItsMarksAtTheBeginning) {
  const std::string call = "{\n  \"name\": \"add\",\n  \"arguments\": {\"a\": 1}\n}";
  for (const std::string& text :
       {"```json\n" + call + "\n```", call, " \n```\n" + call + "\n```\n"}) {
    const Parsed parsed = ParseTagged(text);
    EXPECT_THAT(parsed.calls, ElementsAre("add({\"a\": 1})")) << text;
    EXPECT_THAT(parsed.content, ::testing::MatchesRegex("[ \n]*")) << text;
  }
  // What names no tool, or is no call, is content as it was written, in which marks still count.
  for (const std::string text : {"```json\n{\"name\": \"other\", \"arguments\": {}}\n```",
                                 "```python\nprint(1)\n```\n", "{\"a\": 1} and more"}) {
    const Parsed parsed = ParseTagged(text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_THAT(parsed.calls, IsEmpty());
  }
  EXPECT_THAT(
      ParseTagged("```python\nf()\n```\n<tool_call>{\"name\": \"weather\"}</tool_call>").calls,
      ElementsAre("weather({})"));
  EXPECT_THAT(ParseTagged(call + " and <tool_call>{\"name\": \"weather\"}</tool_call>").calls,
              ElementsAre("add({\"a\": 1})", "weather({})"));
}

TEST(TaggedCallReaderTest, ThoughtsStandApartWhateverIsInThem) {
  const std::string thought = "<tool_call>{\"name\": \"add\"}</tool_call>";
  const Parsed parsed = ParseTagged(
      "<think>\n" + thought + "</think>\n\n<tool_call>{\"name\": \"weather\"}</tool_call>",
      /*thinks=*/true);
  EXPECT_EQ(parsed.content, "");
  EXPECT_EQ(parsed.thoughts, thought);
  EXPECT_THAT(parsed.calls, ElementsAre("weather({})"));
}

TEST(JsonCallReaderTest, TextIsContent) {
  for (const char* text :
       {"", "Hello", "  \n x", "{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "[1, 2]",
        "```python\nprint()\n```", "<b>", "{\"name\": \"add\"", "[{\"name\": \"other\"}]"}) {
    const Parsed parsed = ParseJson(text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_THAT(parsed.calls, IsEmpty()) << text;
  }
}

TEST(JsonCallReaderTest, ReadsOneCall) {
  for (const std::string around : {"", "<|python_tag|>", "\n "}) {
    const Parsed parsed =
        ParseJson(around + "{\"name\": \"add\", \"parameters\": {\"a\": [1, {\"b\": 2}]}}");
    EXPECT_EQ(parsed.content, "");
    EXPECT_THAT(parsed.calls, ElementsAre("add({\"a\": [1, {\"b\": 2}]})"));
  }
}

TEST(JsonCallReaderTest, ReadsSeveralInAListARowAndAFence) {
  const std::string first = "{\"name\": \"add\", \"parameters\": {\"a\": 1}}";
  const std::string second = "{\"name\": \"weather\", \"arguments\": {}}";
  for (const std::string& text :
       {"[" + first + ", " + second + "]", first + "; " + second, first + "\n" + second,
        "```json\n[" + first + ",\n" + second + "]\n```"}) {
    const Parsed parsed = ParseJson(text);
    EXPECT_EQ(parsed.content, "") << text;
    EXPECT_THAT(parsed.calls, ElementsAre("add({\"a\": 1})", "weather({})")) << text;
  }
}

TEST(JsonCallReaderTest, TextBehindACallIsContent) {
  const Parsed parsed = ParseJson("{\"name\": \"weather\", \"parameters\": {}} is what I call");
  EXPECT_THAT(parsed.calls, ElementsAre("weather({})"));
  EXPECT_EQ(parsed.content, " is what I call");
}

// Parameters in marks, of a tool with a schema.
Parsed ParseParameters(const std::string& values, bool may_be_data = false) {
  AnswerFormat format;
  CallFormat& calls = format.calls.emplace();
  calls.arguments = CallFormat::Arguments::kTagged;
  calls.call_begin = "<f=";
  calls.name_end = ">";
  calls.key_begin = "<p=";
  calls.key_end = ">";
  calls.value_end = "</p>";
  calls.call_end = "</f>";
  calls.texts_may_be_data = may_be_data;
  const auto schema = nlohmann::ordered_json::parse(R"({"properties": {
      "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "either": {"type": ["string", "integer"]}, "one": {"enum": ["7", "8"]},
      "number": {"type": "number"}}})");
  return Parse(
      [=] {
        return MakeAnswerReader(format, {{"add", schema}});
      },
      "<f=add>" + values + "</f>");
}

TEST(MarkedArguments, TheSchemaTellsTexts) {
  EXPECT_THAT(ParseParameters("<p=text>7</p><p=number>7</p>").calls,
              ElementsAre("add({\"text\": \"7\", \"number\": 7})"));
  EXPECT_THAT(ParseParameters("<p=maybe>7</p><p=one>7</p>").calls,
              ElementsAre("add({\"maybe\": \"7\", \"one\": \"7\"})"));
  EXPECT_THAT(ParseParameters("<p=maybe>null</p><p=either>7</p>").calls,
              ElementsAre("add({\"maybe\": null, \"either\": 7})"));
  EXPECT_THAT(ParseParameters("<p=unknown>7</p><p=other>seven</p>").calls,
              ElementsAre("add({\"unknown\": 7, \"other\": \"seven\"})"));
}

TEST(MarkedArguments, DataIsATextWhereTemplatesWriteIt) {
  EXPECT_THAT(ParseParameters("<p=text><![CDATA[a</p>]]></p>", /*may_be_data=*/true).calls,
              ElementsAre("add({\"text\": \"a</p>\"})"));
  EXPECT_THAT(ParseParameters("<p=text><![CDATA[a]]></p>").calls,
              ElementsAre("add({\"text\": \"<![CDATA[a]]>\"})"));
}

TEST(WholeAnswerReader, MarksAroundTheTextAreNoContent) {
  AnswerFormat format;
  format.thoughts = ThoughtFormat{"<think>", "</think>"};
  format.text_begin = "<text>";
  format.text_end = "</text>";
  const auto parse = [&](const std::string& text) {
    return Parse([&] { return MakeAnswerReader(format, {}); }, text);
  };
  EXPECT_EQ(parse("<think>Hm.</think><text>a</text>"), (Parsed{"a", "Hm.", {}}));
  EXPECT_EQ(parse("</think>a</text>b"), (Parsed{"a</text>b", "", {}}));
  EXPECT_EQ(parse("a</tex"), (Parsed{"a</tex", "", {}}));
}

}  // namespace
}  // namespace kvlathe
