// `kvlathe chat` reads what a person types or what a program writes to it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

struct ChatInput {
  enum class Kind { kMessage, kHelp, kClear, kRate, kExit };
  Kind kind = Kind::kMessage;
  std::string text;  // the message, or what follows the command
};

// Text that begins with '/' is a command, unless with "//": that is a message with one of them.
// kInvalidArgument for a command that is not known or has what it does not take.
StatusOr<ChatInput> ParseChatInput(std::string_view text);

// The commands and keys, a line each.
std::string ChatHelp();

// Whether a line goes on in the next one: then without the backslash that says so.
bool TakeContinuation(std::string* line);

class ChatReader {
 public:
  ChatReader();
  // Standard input and output are a terminal: lines are edited and recalled, and a line that ends
  // in a backslash goes on in the next. Otherwise every line of standard input is a message as it
  // is.
  bool is_terminal() const { return is_terminal_; }
  // The next message or command; nothing at the end of the input.
  std::optional<std::string> Read();

 private:
  std::optional<std::string> ReadEdited();

  bool is_terminal_;
};

}  // namespace kvlathe
