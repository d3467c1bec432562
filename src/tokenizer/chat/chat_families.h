// The chat families by name: what --chat-template takes, and where the recognition of a template
// starts from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/chat_format.h"

namespace kvlathe {

// What templates know beside the messages.
struct ChatContext {
  std::string bos;    // bos_token, empty if there is none
  std::string eos;    // eos_token
  std::string today;  // as strftime "%d %b %Y", for templates that name the date
};

// kInvalidArgument, listing the names, for another name.
StatusOr<ChatFormat> NamedChatFormat(std::string_view family, const ChatContext& context);

// Names in the order of help texts.
std::vector<std::string> ChatFamilyNames();

}  // namespace kvlathe
