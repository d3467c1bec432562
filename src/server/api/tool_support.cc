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

StatusOr<ChatPrompt> TextOnlySupport::Render(const ChatTask& task) const {
  if (format_ == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "this model has no chat template; use /v1/completions with a whole prompt, or "
                 "start the server with --chat-template");
  }
  KVL_RETURN_IF_ERROR(CheckTextOnly(task));
  std::vector<ChatMessage> messages;
  for (const ChatTurn& turn : task.turns) messages.push_back({turn.role, turn.content});
  ChatPrompt prompt;
  KVL_ASSIGN_OR_RETURN(prompt.text, RenderChat(*format_, messages));
  return prompt;
}

}  // namespace kvlathe::api
