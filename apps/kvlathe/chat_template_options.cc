#include "kvlathe/chat_template_options.h"

#include <fmt/ranges.h>

#include "chat/template_files.h"

namespace kvlathe {

void AddChatTemplateOptions(CLI::App* verb, ChatTemplateOptions* options) {
  verb->add_option("--chat-template", options->choice,
                   fmt::format("a file with a Jinja template, or one of {} (default: the model's)",
                               fmt::join(ChatTemplateNames(), ", ")));
  verb->add_flag("--control-tokens", options->reads_control_tokens,
                 "read control tokens that are written in messages as such (default: as text)");
}

}  // namespace kvlathe
