#include "server/api/tool_support.h"

#include <utility>

namespace kvlathe::api {
namespace {

// kUnimplemented with the name of the first field that asks for more than text.
Status CheckTextOnly(const ChatTask& task) {
  constexpr std::string_view kWhy =
      "is not supported with this model's chat template in this build; leave it out, or ask for it "
      "in the text of a message";
  if (!task.tools.empty()) return Error(StatusCode::kUnimplemented, "tools: {}", kWhy);
  if (task.response_format.kind != ResponseFormat::Kind::kText) {
    return Error(StatusCode::kUnimplemented, "response_format: a type other than text {}", kWhy);
  }
  for (const ChatTurn& turn : task.turns) {
    if (turn.role == "tool") {
      return Error(StatusCode::kUnimplemented, "messages: the role tool {}", kWhy);
    }
    if (!turn.tool_calls.empty()) {
      return Error(StatusCode::kUnimplemented, "messages: tool_calls {}", kWhy);
    }
  }
  return OkStatus();
}

}  // namespace

ChatConversation ConversationOf(const ChatTask& task) {
  ChatConversation conversation;
  for (const ChatTurn& turn : task.turns) {
    Json message = {{"role", turn.role}};
    message["content"] = turn.parts.is_array() ? turn.parts : Json(turn.content);
    if (!turn.thoughts.empty()) message["reasoning_content"] = turn.thoughts;
    if (!turn.tool_call_id.empty()) message["tool_call_id"] = turn.tool_call_id;
    if (!turn.name.empty()) message["name"] = turn.name;
    Json calls = Json::array();
    for (const ToolCall& call : turn.tool_calls) {
      calls.push_back({{"id", call.id},
                       {"type", "function"},
                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    conversation.messages.push_back(std::move(message));
  }
  if (!task.tools.empty()) conversation.tools = Json::array();
  for (const ToolDefinition& tool : task.tools) conversation.tools.push_back(tool.json);
  conversation.documents = task.documents;
  conversation.arguments = task.template_arguments;
  conversation.opens_answer = task.opens_answer;
  conversation.continues_last_message = task.continues_last;
  return conversation;
}

StatusOr<ChatPrompt> TextOnlySupport::Render(const ChatTask& task) const {
  if (template_ == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "this model has no chat template; use /v1/completions with a whole prompt, or "
                 "start the server with --chat-template");
  }
  KVL_RETURN_IF_ERROR(CheckTextOnly(task));
  ChatPrompt prompt;
  KVL_ASSIGN_OR_RETURN(prompt.text, template_->Render(ConversationOf(task)));
  return prompt;
}

}  // namespace kvlathe::api
