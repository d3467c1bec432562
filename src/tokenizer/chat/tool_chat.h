// Conversations with tools: what a chat template makes of tool definitions, of the calls that an
// assistant made and of the tools' answers.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/status.h"
#include "tokenizer/chat/chat_format.h"

namespace kvlathe {

struct ChatConversation {
  std::span<const ChatMessage> messages;
  // As a request has them: {"type": "function", "function": {"name": ..., "description": ...,
  // "parameters": {...}}}.
  std::span<const nlohmann::ordered_json> tools = {};
  bool may_think =
      true;  // false: the answer is to begin without thoughts, where the format has any
};

// The prompt for the next answer: byte for byte what the template gives with add_generation_prompt,
// tools and, with !may_think, enable_thinking=false. Without tools, calls and answers it is that of
// RenderChat. kUnimplemented: there are tools, and the format has none. kInvalidArgument: what
// RenderChat refuses, except that the last message may be a tool's answer; arguments of a call that
// are no JSON object; and what the template refuses.
StatusOr<std::string> RenderConversation(const ChatFormat& format,
                                         const ChatConversation& conversation);

}  // namespace kvlathe
