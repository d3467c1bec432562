#include "server/tools/template_tool_support.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/tools/call_parsers.h"
#include "structured/answer_structure.h"
#include "tokenizer/chat/tool_chat.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// The function that a tool's answer is of: that of the call which it names, or as it says itself.
std::string ToolNameOf(const api::ChatTask& task, const api::ChatTurn& answer) {
  for (const api::ChatTurn& turn : task.turns) {
    for (const api::ToolCall& call : turn.tool_calls) {
      if (!answer.tool_call_id.empty() && call.id == answer.tool_call_id) return call.name;
    }
  }
  return answer.name;
}

std::vector<ChatMessage> MessagesOf(const api::ChatTask& task) {
  std::vector<ChatMessage> messages;
  for (const api::ChatTurn& turn : task.turns) {
    ChatMessage message = {.role = turn.role, .content = turn.content};
    for (const api::ToolCall& call : turn.tool_calls) {
      message.tool_calls.push_back({.name = call.name, .arguments = call.arguments});
    }
    if (turn.role == "tool") message.tool_name = ToolNameOf(task, turn);
    messages.push_back(std::move(message));
  }
  return messages;
}

// chat_template_kwargs: {"enable_thinking": false}
StatusOr<bool> MayThink(const Json& arguments) {
  if (!arguments.is_object() || !arguments.contains("enable_thinking")) return true;
  const Json& value = arguments["enable_thinking"];
  if (value.is_boolean()) return value.get<bool>();
  return Error(StatusCode::kInvalidArgument,
               "chat_template_kwargs: enable_thinking must be true or false");
}

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

}  // namespace

TemplateToolSupport::TemplateToolSupport(const ChatFormat* format,
                                         StatusOr<std::unique_ptr<Grammars>> grammars)
    : format_(format) {
  if (grammars.ok()) {
    grammars_ = std::shared_ptr<Grammars>(*std::move(grammars));
  } else {
    grammars_ = grammars.status();
  }
}

StatusOr<std::string> TemplateToolSupport::RenderText(const api::ChatTask& task) const {
  const std::vector<ChatMessage> messages = MessagesOf(task);
  std::vector<Json> tools;
  for (const api::ToolDefinition& tool : task.tools) tools.push_back(tool.json);
  KVL_ASSIGN_OR_RETURN(const bool may_think, MayThink(task.template_arguments));
  return RenderConversation(*format_,
                            {.messages = messages, .tools = tools, .may_think = may_think});
}

StatusOr<api::ChatPrompt> TemplateToolSupport::Render(const api::ChatTask& task) const {
  if (format_ == nullptr) return api::TextOnlySupport(nullptr).Render(task);
  api::ChatPrompt prompt;
  KVL_ASSIGN_OR_RETURN(prompt.text, RenderText(task));
  if (task.tools.empty()) {
    KVL_RETURN_IF_ERROR(ConstrainFormat(task.response_format, &prompt));
    return prompt;
  }
  if (task.response_format.kind != api::ResponseFormat::Kind::kText) {
    return Error(StatusCode::kUnimplemented,
                 "response_format: it is not supported beside tools; leave one of them out, or set "
                 "tool_choice to \"none\"");
  }
  KVL_RETURN_IF_ERROR(ConstrainCalls(task, &prompt));
  AddParser(task, &prompt);
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
  KVL_ASSIGN_OR_RETURN(Json structure, ToolCalls(*format_->tools, CallableTools(task),
                                                 {.must_call = must_call,
                                                  .has_many_calls = task.parallel_tool_calls}));
  return Constrain(field, std::move(structure), prompt);
}

void TemplateToolSupport::AddParser(const api::ChatTask& task, api::ChatPrompt* prompt) const {
  // A vocabulary may count <tool_call> among its special tokens.
  prompt->keeps_special_tokens = true;
  if (format_->tools->syntax == ToolCallSyntax::kTagged) {
    prompt->make_parser = [thinks = format_->thinks] { return MakeTaggedCallParser(thinks); };
    return;
  }
  std::set<std::string> names;
  for (const api::ToolDefinition& tool : task.tools) names.insert(tool.name);
  prompt->make_parser = [names] { return MakeJsonCallParser(names); };
}

}  // namespace kvlathe
