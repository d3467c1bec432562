#include "server/tools/template_tool_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/reading/call_readers.h"
#include "chat/template_files.h"

namespace kvlathe {
namespace {

using api::ChatTask;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Takes any structure, and remembers the last.
class FakeGrammars : public Grammars {
 public:
  explicit FakeGrammars(Json* last) : last_(last) {}
  StatusOr<std::shared_ptr<TokenConstraint>> Constrain(const Json& structure) override {
    *last_ = structure;
    return std::shared_ptr<TokenConstraint>();
  }

 private:
  Json* last_;
};

api::ToolDefinition Tool(const std::string& name) {
  const Json parameters = {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}};
  const Json function = {{"name", name}, {"description", "d"}, {"parameters", parameters}};
  return {.name = name,
          .description = "d",
          .parameters = parameters,
          .json = {{"type", "function"}, {"function", function}}};
}

ChatTask Ask(const std::string& question) {
  ChatTask task;
  task.turns.push_back({.role = "user", .content = question});
  return task;
}

class TemplateToolSupportTest : public ::testing::Test {
 protected:
  static ChatTemplate Format(const std::string& name) {
    StatusOr<ChatTemplate> found = LoadChatTemplateFile(
        fmt::format("{}/share/chat_templates/{}.jinja", KVLATHE_SOURCE_DIR, name), {});
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(found);
  }
  TemplateToolSupport With(const ChatTemplate* format) {
    return TemplateToolSupport(format, std::make_unique<FakeGrammars>(&structure_));
  }
  static TemplateToolSupport Without(const ChatTemplate* format) {
    return TemplateToolSupport(format, Error(StatusCode::kUnimplemented, "no grammars here"));
  }
  // The structure of the constraint that a task gets; null: none.
  Json StructureOf(const TemplateToolSupport& support, const ChatTask& task) {
    structure_ = nullptr;
    const StatusOr<api::ChatPrompt> prompt = support.Render(task);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    const bool is_constrained = prompt.ok() && prompt->make_constraint != nullptr;
    EXPECT_TRUE(!is_constrained || prompt->make_constraint().ok());
    return structure_;
  }

  Json structure_;
};

TEST_F(TemplateToolSupportTest, TextNeedsNeitherToolsNorGrammars) {
  const ChatTemplate format = Format("zephyr");
  const auto prompt = Without(&format).Render(Ask("Hello"));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->text.text, HasSubstr("Hello"));
  EXPECT_EQ(prompt->make_constraint, nullptr);
  EXPECT_EQ(prompt->make_parser, nullptr);
}

TEST_F(TemplateToolSupportTest, TemplatesWithoutToolsRefuseThemByName) {
  const ChatTemplate format = Format("zephyr");
  ChatTask task = Ask("Hello");
  task.tools = {Tool("weather")};
  const Status status = With(&format).Render(task).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), HasSubstr("tools"));
}

TEST_F(TemplateToolSupportTest, AutomaticCallsNeedNoGrammar) {
  for (const char* family : {"qwen3", "hermes", "llama3.1", "gemma"}) {
    const ChatTemplate format = Format(family);
    ChatTask task = Ask("Is it raining?");
    task.tools = {Tool("weather")};
    const auto prompt = Without(&format).Render(task);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_THAT(prompt->text.text, HasSubstr("weather"));
    EXPECT_EQ(prompt->make_constraint, nullptr);
    ASSERT_NE(prompt->make_parser, nullptr);
    const AnswerFormat& answers = format.answer_format(/*has_tools=*/true);
    ASSERT_TRUE(answers.calls) << family << ": " << answers.why_no_calls;
    const bool is_tagged = !IsBareJson(*answers.calls);
    const std::string call = "{\"name\": \"weather\", \"arguments\": {}}";
    const auto delta =
        prompt->make_parser()->Push(is_tagged ? "<tool_call>" + call + "</tool_call>" : call);
    ASSERT_EQ(delta.calls.size(), 1U) << family;
    EXPECT_EQ(delta.calls[0].name, "weather");
  }
}

TEST_F(TemplateToolSupportTest, WhatNeedsAGrammarIsConstrainedOrRefusedByName) {
  const ChatTemplate format = Format("qwen3");
  const TemplateToolSupport with = With(&format), without = Without(&format);
  ChatTask required = Ask("x"), strict = Ask("x"), one = Ask("x"), object = Ask("x");
  required.tools = strict.tools = one.tools = {Tool("weather"), Tool("add")};
  required.tool_choice.kind = api::ToolChoice::Kind::kRequired;
  strict.tools[0].is_strict = true;
  one.parallel_tool_calls = false;
  object.response_format.kind = api::ResponseFormat::Kind::kJsonObject;
  for (const auto& [task, field] :
       {std::pair(&required, "tool_choice"), std::pair(&strict, "strict"),
        std::pair(&one, "parallel_tool_calls"), std::pair(&object, "response_format")}) {
    EXPECT_FALSE(StructureOf(with, *task).is_null()) << field;
    const Status status = without.Render(*task).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << field;
    EXPECT_THAT(MessageOf(status), HasSubstr(field));
  }
}

TEST_F(TemplateToolSupportTest, ANamedToolIsTheOnlyOne) {
  const ChatTemplate format = Format("qwen3");
  ChatTask task = Ask("x");
  task.tools = {Tool("weather"), Tool("add")};
  task.tool_choice = {.kind = api::ToolChoice::Kind::kNamed, .name = "add"};
  const std::string structure = StructureOf(With(&format), task).dump();
  EXPECT_THAT(structure, HasSubstr("add"));
  EXPECT_THAT(structure, ::testing::Not(HasSubstr("weather")));
}

TEST_F(TemplateToolSupportTest, WrongSchemasAndArgumentsAreRefused) {
  const ChatTemplate format = Format("qwen3");
  ChatTask task = Ask("x");
  task.response_format.kind = api::ResponseFormat::Kind::kJsonSchema;
  task.response_format.schema = {{"not", {{"type", "string"}}}};
  const Status status = With(&format).Render(task).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(MessageOf(status), HasSubstr("response_format"));
  task = Ask("x");
  task.tools = {Tool("weather")};
  task.turns.push_back({.role = "assistant", .tool_calls = {{"call_1", "weather", "[1]"}}});
  EXPECT_EQ(With(&format).Render(task).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(TemplateToolSupportTest, AnswersOfToolsBearTheNameOfTheirCall) {
  const ChatTemplate format = Format("hermes");
  ChatTask task = Ask("x");
  task.tools = {Tool("weather")};
  task.turns.push_back({.role = "assistant", .tool_calls = {{"call_1", "weather", "{}"}}});
  task.turns.push_back({.role = "tool", .content = "rain", .tool_call_id = "call_1"});
  const auto prompt = With(&format).Render(task);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->text.text, HasSubstr("rain"));
}

}  // namespace
}  // namespace kvlathe
