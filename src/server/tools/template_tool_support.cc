#include "server/tools/template_tool_support.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/reading/call_readers.h"
#include "chat/reading/text_compare.h"
#include "structured/answer_structure.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// The tools that an answer may call.
std::vector<CallableTool> CallableTools(const api::ChatTask& task) {
  std::vector<CallableTool> tools;
  for (const api::ToolDefinition& tool : task.tools) {
    const bool is_named = task.tool_choice.kind == api::ToolChoice::Kind::kNamed;
    if (is_named && tool.name != task.tool_choice.name) continue;
    tools.push_back({.name = tool.name, .parameters = tool.parameters});
  }
  return tools;
}

// Whether an answer goes on within thoughts that the prompt began.
bool StartsInThoughts(const AnswerFormat& format, std::string_view prompt) {
  const std::string_view mark = TrimBlanks(format.thoughts->begin);
  return !mark.empty() && TrimBlanks(prompt).ends_with(mark);
}

}  // namespace

TemplateToolSupport::TemplateToolSupport(const ChatTemplate* chat_template,
                                         StatusOr<std::unique_ptr<Grammars>> grammars)
    : template_(chat_template) {
  if (grammars.ok()) {
    grammars_ = std::shared_ptr<Grammars>(*std::move(grammars));
  } else {
    grammars_ = grammars.status();
  }
}

StatusOr<api::ChatPrompt> TemplateToolSupport::Render(const api::ChatTask& task) const {
  if (template_ == nullptr) return api::TextOnlySupport(nullptr).Render(task);
  api::ChatPrompt prompt;
  KVL_ASSIGN_OR_RETURN(prompt.text, template_->Render(api::ConversationOf(task)));
  if (task.tools.empty()) {
    if (task.response_format.kind == api::ResponseFormat::Kind::kText) AddReader(task, &prompt);
    KVL_RETURN_IF_ERROR(ConstrainFormat(task.response_format, &prompt));
    return prompt;
  }
  if (task.response_format.kind != api::ResponseFormat::Kind::kText) {
    return Error(StatusCode::kUnimplemented,
                 "response_format: it is not supported beside tools; leave one of them out, or set "
                 "tool_choice to \"none\"");
  }
  KVL_RETURN_IF_ERROR(ConstrainCalls(task, &prompt));
  AddReader(task, &prompt);
  return prompt;
}

Status TemplateToolSupport::Constrain(const char* field, Json structure,
                                      api::ChatPrompt* prompt) const {
  if (!grammars_.ok()) {
    return Error(grammars_.status().code(), "{}: {}", field, MessageOf(grammars_.status()));
  }
  prompt->make_constraint = [grammars = *grammars_, structure = std::move(structure)] {
    return grammars->Constrain(structure);
  };
  return OkStatus();
}

Status TemplateToolSupport::ConstrainFormat(const api::ResponseFormat& format,
                                            api::ChatPrompt* prompt) const {
  switch (format.kind) {
    case api::ResponseFormat::Kind::kText:
      return OkStatus();
    case api::ResponseFormat::Kind::kJsonObject:
      return Constrain("response_format", AnyJsonObject(), prompt);
    case api::ResponseFormat::Kind::kJsonSchema: {
      StatusOr<Json> structure = JsonBySchema(format.schema);
      if (!structure.ok()) {
        return Error(structure.status().code(), "response_format: {}",
                     MessageOf(structure.status()));
      }
      return Constrain("response_format", *std::move(structure), prompt);
    }
  }
  return OkStatus();
}

Status TemplateToolSupport::ConstrainCalls(const api::ChatTask& task,
                                           api::ChatPrompt* prompt) const {
  const bool must_call = task.tool_choice.kind == api::ToolChoice::Kind::kRequired ||
                         task.tool_choice.kind == api::ToolChoice::Kind::kNamed;
  const bool is_strict = std::ranges::any_of(task.tools, &api::ToolDefinition::is_strict);
  if (!must_call && !is_strict && task.parallel_tool_calls) return OkStatus();
  const char* const field = must_call   ? "tool_choice"
                            : is_strict ? "tools: strict"
                                        : "parallel_tool_calls";
  const AnswerFormat& format = template_->answer_format(/*has_tools=*/true);
  if (!format.calls) {
    return Error(StatusCode::kUnimplemented,
                 "{}: of this model's chat template, {}, so that no grammar describes them", field,
                 format.why_no_calls);
  }
  const bool thinks = must_call && format.thoughts && StartsInThoughts(format, prompt->text.text);
  StatusOr<Json> structure =
      ToolCalls(*format.calls, CallableTools(task),
                {.must_call = must_call,
                 .has_many_calls = task.parallel_tool_calls,
                 .thoughts_end = thinks ? std::string(TrimBlanks(format.thoughts->end)) : ""});
  if (!structure.ok()) {
    const bool is_unknown = structure.status().code() == StatusCode::kUnimplemented;
    return is_unknown
               ? Error(StatusCode::kUnimplemented, "{}: {}", field, MessageOf(structure.status()))
               : structure.status();
  }
  return Constrain(field, *std::move(structure), prompt);
}

void TemplateToolSupport::AddReader(const api::ChatTask& task, api::ChatPrompt* prompt) const {
  AnswerFormat format = template_->answer_format(!task.tools.empty());
  ToolSchemas tools;
  for (const api::ToolDefinition& tool : task.tools) tools[tool.name] = tool.parameters;
  if (!format.calls) tools.clear();
  const bool has_marks =
      !TrimBlanks(format.text_begin).empty() || !TrimBlanks(format.text_end).empty();
  if (tools.empty() && !format.thoughts && !has_marks) return;
  if (format.thoughts) format.thoughts->is_open = StartsInThoughts(format, prompt->text.text);
  // A vocabulary may count the marks of calls and thoughts among its special tokens.
  prompt->keeps_special_tokens = true;
  prompt->make_parser = [format = std::move(format), tools = std::move(tools)] {
    return MakeAnswerReader(format, tools);
  };
}

}  // namespace kvlathe
