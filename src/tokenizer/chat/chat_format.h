// What a chat template makes of a conversation, as data: every family that chat_template.h knows is
// one ChatFormat.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/tool_format.h"

namespace kvlathe {

struct ChatToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

struct ChatMessage {
  std::string role;  // system, user, assistant or (RenderConversation) tool
  std::string content;
  std::vector<ChatToolCall> tool_calls = {};  // of assistant
  std::string tool_name = {};                 // of tool: which function answers; may be empty
};

struct ChatFormat {
  // What stands around the content of a message.
  struct Turn {
    std::string prefix;
    std::string suffix;
  };
  // Where the system message goes.
  enum class System {
    kOwnTurn,    // a turn of its own at the beginning
    kFirstUser,  // with its prefix and suffix in front of the first user message
    kLastUser,   // the same with the last user message
    kDropped,    // the template leaves it out
    kRefused,    // the template raises an exception
  };
  // What is done to a content. Trimming is Python's str.strip.
  enum class Filter {
    kNone,
    kTrim,
    kTrimAndJoin,  // and "\r\n" becomes "\n", then "\n\n" becomes "\n"
  };

  std::string family;  // as --chat-template names it
  std::string source;  // the template, where it was recognised; empty: the family was named
  std::string start;   // in front of everything: BOS or nothing
  Turn system;
  Turn user;
  Turn assistant;
  std::string answer_prefix;  // after the last message: opens the answer
  System system_place = System::kOwnTurn;
  Filter system_filter = Filter::kNone;
  Filter user_filter = Filter::kNone;
  Filter assistant_filter = Filter::kNone;
  // The system message passes user_filter together with the content that it stands in front of.
  bool filters_merged = false;
  bool always_has_system = false;   // without a system message there is one with default_system
  bool skips_empty_system = false;  // a system message without content leaves no turn
  std::string default_system;
  bool alternates = false;  // the template raises an exception unless the roles alternate
  // Texts at which the answer ends, besides the end of sequence: mostly one control token.
  std::vector<std::string> ends;
  // Answers begin with thoughts, <think>...</think>. Those of answers before the last question of
  // the user are left out.
  bool thinks = false;
  std::string no_thoughts;          // after answer_prefix where the answer is to have none
  std::optional<ToolFormat> tools;  // none: the template has no tools that this build renders
};

// The prompt for the next answer: byte for byte what the template gives with
// add_generation_prompt. kInvalidArgument for a conversation that is empty, has a role other than
// the three or a system message after the first, does not end with a user message, or that the
// template refuses.
StatusOr<std::string> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages);

// What an assistant's message is without its thoughts: what stands behind the last </think>,
// without the line feeds in front of it. A content without one is all answer.
std::string_view WithoutThoughts(std::string_view content);

// Python's str.strip() of UTF-8; bytes that are not UTF-8 are kept.
std::string_view StripLikePython(std::string_view text);

}  // namespace kvlathe
