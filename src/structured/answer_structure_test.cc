#include "structured/answer_structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Calls of {"name": NAME, `key`: {...}} in marks.
CallFormat Format(const std::string& key, const std::string& begin, const std::string& end) {
  CallFormat format;
  format.call_begin = begin + "{\"name\": \"";
  format.name_end = "\", \"" + key + "\": ";
  format.call_end = "}" + end;
  format.between = "\n";
  format.is_object = true;
  format.name_key = "name";
  format.arguments_key = key;
  return format;
}

CallFormat QwenCalls() { return Format("arguments", "<tool_call>\n", "\n</tool_call>"); }
CallFormat GemmaCalls() { return Format("parameters", "", ""); }
CallFormat LlamaCalls() {
  CallFormat format = GemmaCalls();
  format.is_one_call = true;
  return format;
}

const std::vector<CallableTool> kTools = {{"now", nullptr}, {"sum", {{"type", "object"}}}};

TEST(AnswerStructure, CallsAreInTheSyntaxOfTheFormat) {
  const Json qwen = *ToolCalls(QwenCalls(), kTools, {});
  EXPECT_EQ(qwen["format"]["tags"].size(), 2u);
  EXPECT_EQ(qwen["format"]["tags"][1]["begin"], "<tool_call>\n{\"name\": \"sum\", \"arguments\": ");
  EXPECT_EQ(qwen["format"]["tags"][1]["end"], "}\n</tool_call>");
  EXPECT_EQ(qwen["format"]["stop_after_first"], false);
  const Json llama = *ToolCalls(LlamaCalls(), kTools, {});
  EXPECT_EQ(llama["format"]["tags"][0]["begin"], "{\"name\": \"now\", \"parameters\": ");
  EXPECT_EQ(llama["format"]["stop_after_first"], true) << "the template takes one call only";
  EXPECT_EQ(
      (*ToolCalls(QwenCalls(), kTools, {.has_many_calls = false}))["format"]["stop_after_first"],
      true);
  EXPECT_EQ((*ToolCalls(QwenCalls(), kTools, {.must_call = false}))["format"]["type"],
            "triggered_tags");
  EXPECT_EQ((*ToolCalls(GemmaCalls(), kTools, {.must_call = false}))["format"]["type"], "or");
}

TEST(AnswerStructure, ASectionStandsAroundAllCalls) {
  CallFormat format;
  format.section_begin = "<calls>";
  format.section_end = "</calls>";
  format.call_begin = "<call>";
  format.name_end = "<args>";
  format.call_end = "</call>";
  const Json must = (*ToolCalls(format, kTools, {}))["format"];
  ASSERT_EQ(must["type"], "sequence");
  EXPECT_EQ(must["elements"][0]["value"], "<calls>");
  EXPECT_EQ(must["elements"][1]["tags"][0]["begin"], "<call>now<args>");
  EXPECT_EQ(must["elements"][2]["value"], "</calls>");
  const Json thinks = (*ToolCalls(format, kTools, {.thoughts_end = "</think>"}))["format"];
  EXPECT_EQ(thinks["elements"][0]["end"], "</think>");
  const Json may = (*ToolCalls(format, kTools, {.must_call = false}))["format"];
  EXPECT_EQ(may["triggers"][0], "<calls>");
}

TEST(AnswerStructure, ArgumentsStandInTheMarksOfTheFormat) {
  CallFormat format;
  format.arguments = CallFormat::Arguments::kTagged;
  format.call_begin = "<tool_call>\n<function=";
  format.name_end = ">";
  format.key_begin = "\n<parameter=";
  format.key_end = ">";
  format.value_end = "</parameter>";
  format.call_end = "\n</function>\n</tool_call>";
  const Json parameters = Json::parse(
      R"({"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}},
          "required": ["days"]})");
  const std::vector<CallableTool> tools = {{"weather", parameters}};
  const Json tag = (*ToolCalls(format, tools, {}))["format"]["tags"][0];
  EXPECT_EQ(tag["begin"], "<tool_call>\n<function=weather>");
  EXPECT_EQ(tag["end"], "\n</function>\n</tool_call>");
  const std::string content = tag["content"].dump();
  EXPECT_THAT(content, HasSubstr("<parameter=days"));
  EXPECT_THAT(content, HasSubstr(R"("type":"optional")")) << "city may be left out";
  EXPECT_THAT(content, HasSubstr("any_text")) << "a text has no quotes";
}

TEST(AnswerStructure, CallsThatAreNoJsonNeedAnObjectWithProperties) {
  CallFormat format;
  format.arguments = CallFormat::Arguments::kPython;
  format.call_begin = "[";
  format.name_end = "(";
  format.call_end = ")]";
  EXPECT_TRUE(ToolCalls(format, kTools, {}).ok());
  for (
      const char* parameters :
      {R"({"anyOf": [{"type": "object"}, {"type": "object"}]})",
       R"({"type": "object", "properties": {"more": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}})"}) {
    const std::vector<CallableTool> tools = {{"f", Json::parse(parameters)}};
    const Status status = ToolCalls(format, tools, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << parameters;
    EXPECT_THAT(MessageOf(status), HasSubstr("the tool f: ")) << parameters;
  }
}

TEST(AnswerStructure, ARefusedSchemaNamesItsTool) {
  const std::vector<CallableTool> tools = {{"f", {{"not", Json::object()}}}};
  const auto structure = ToolCalls(QwenCalls(), tools, {});
  EXPECT_EQ(structure.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(structure.status()),
              HasSubstr("the parameters of the tool f: schema: the"));
  EXPECT_FALSE(JsonBySchema({{"not", Json::object()}}).ok());
}

TEST(AnswerStructure, AllToolsTogetherMustCompileSoon) {
  const Json parameters = Json::parse(
      R"({"type": "object", "properties": {"a": {"multipleOf": 800}, "b": {"multipleOf": 800}}})");
  const std::vector<CallableTool> few(5, {"few", parameters}), many(6, {"many", parameters});
  EXPECT_TRUE(ToolCalls(QwenCalls(), few, {}).ok());
  const auto structure = ToolCalls(QwenCalls(), many, {});
  EXPECT_EQ(structure.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(structure.status()), HasSubstr("up to many would take too long"));
}

}  // namespace
}  // namespace kvlathe
