#include "structured/answer_structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::vector<CallableTool> kTools = {{"now", nullptr}, {"sum", {{"type", "object"}}}};

TEST(AnswerStructure, CallsAreInTheSyntaxOfTheFormat) {
  const Json qwen = *ToolCalls(QwenTools(), kTools, {});
  EXPECT_EQ(qwen["format"]["tags"].size(), 2u);
  EXPECT_EQ(qwen["format"]["tags"][1]["begin"], "<tool_call>\n{\"name\": \"sum\", \"arguments\": ");
  EXPECT_EQ(qwen["format"]["tags"][1]["end"], "}\n</tool_call>");
  EXPECT_EQ(qwen["format"]["stop_after_first"], false);
  const Json llama = *ToolCalls(Llama31Tools(), kTools, {});
  EXPECT_EQ(llama["format"]["tags"][0]["begin"], "{\"name\": \"now\", \"parameters\": ");
  EXPECT_EQ(llama["format"]["stop_after_first"], true) << "the template takes one call only";
  EXPECT_EQ(
      (*ToolCalls(QwenTools(), kTools, {.has_many_calls = false}))["format"]["stop_after_first"],
      true);
  EXPECT_EQ((*ToolCalls(QwenTools(), kTools, {.must_call = false}))["format"]["type"],
            "triggered_tags");
  EXPECT_EQ((*ToolCalls(Gemma3Tools(), kTools, {.must_call = false}))["format"]["type"], "or");
}

TEST(AnswerStructure, ARefusedSchemaNamesItsTool) {
  const std::vector<CallableTool> tools = {{"f", {{"not", Json::object()}}}};
  const auto structure = ToolCalls(QwenTools(), tools, {});
  EXPECT_EQ(structure.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(structure.status()),
              HasSubstr("the parameters of the tool f: schema: the"));
  EXPECT_FALSE(JsonBySchema({{"not", Json::object()}}).ok());
}

TEST(AnswerStructure, AllToolsTogetherMustCompileSoon) {
  const Json parameters = Json::parse(
      R"({"type": "object", "properties": {"a": {"maxLength": 100}, "b": {"maxLength": 100}}})");
  const std::vector<CallableTool> few(5, {"few", parameters}), many(6, {"many", parameters});
  EXPECT_TRUE(ToolCalls(QwenTools(), few, {}).ok());
  const auto structure = ToolCalls(QwenTools(), many, {});
  EXPECT_EQ(structure.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(structure.status()), HasSubstr("up to many would take too long"));
}

}  // namespace
}  // namespace kvlathe
