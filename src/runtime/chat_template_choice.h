// A program chooses here which chat template a model has: its own, or another one by name or file.
#pragma once

#include <string>

#include "base/status.h"
#include "chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

struct ChatTemplateOptions {
  std::string choice;  // a name of ChatTemplateNames or a file; empty: the model's own
  bool reads_control_tokens = false;  // written in messages, they count as such
};

// The template for a model (a directory or GGUF file; empty: there is none) with its tokenizer.
// kNotFound: the model has none and none is chosen, or there is no such name or file.
StatusOr<ChatTemplate> FindChatTemplate(const ChatTemplateOptions& options,
                                        const std::string& model, const Tokenizer& tokenizer);

}  // namespace kvlathe
