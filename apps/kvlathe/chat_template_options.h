// The verbs that hold conversations share these options.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/chat_template_choice.h"

namespace kvlathe {

// --chat-template and --control-tokens.
void AddChatTemplateOptions(CLI::App* verb, ChatTemplateOptions* options);

}  // namespace kvlathe
