// Which chat template a command uses: the model's, or what --chat-template says.
#pragma once

#include <string>

#include "base/status.h"
#include "chat/chat_template.h"
#include "kvlathe/options.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

struct ChatTemplateOptions {
  std::string
      choice;  // --chat-template: a name of ChatTemplateNames or a file; empty: the model's own
  bool reads_control_tokens = false;  // --control-tokens
};

void AddChatTemplateOptions(CLI::App* verb, ChatTemplateOptions* options);

// The template for a model (a directory or GGUF file; empty: there is none) with its tokenizer.
// kNotFound: the model has none and none is chosen, or there is no such name or file.
StatusOr<ChatTemplate> FindChatTemplate(const ChatTemplateOptions& options,
                                        const std::string& model, const Tokenizer& tokenizer);

}  // namespace kvlathe
