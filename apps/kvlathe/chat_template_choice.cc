#include "kvlathe/chat_template_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "chat/template_files.h"
#include "io/files.h"
#include "kvlathe/shared_texts.h"

namespace kvlathe {

void AddChatTemplateOptions(CLI::App* verb, ChatTemplateOptions* options) {
  verb->add_option("--chat-template", options->choice,
                   fmt::format("a file with a Jinja template, or one of {} (default: the model's)",
                               fmt::join(ChatTemplateNames(), ", ")));
  verb->add_flag("--control-tokens", options->reads_control_tokens,
                 "read control tokens that are written in messages as such (default: as text)");
}

StatusOr<ChatTemplate> FindChatTemplate(const ChatTemplateOptions& options,
                                        const std::string& model, const Tokenizer& tokenizer) {
  NamedTokens tokens = TokensByName(tokenizer, model);
  if (options.choice.empty()) return LoadChatTemplate(model, std::move(tokens));
  const std::vector<std::string> names = ChatTemplateNames();
  if (std::ranges::find(names, options.choice) != names.end()) {
    KVL_ASSIGN_OR_RETURN(const std::string path,
                         SharedText(fmt::format("chat_templates/{}.jinja", options.choice)));
    return LoadChatTemplateFile(path, std::move(tokens));
  }
  if (!FileExists(options.choice)) {
    return Error(StatusCode::kNotFound, "--chat-template {}: no such file, and none of {}",
                 options.choice, fmt::join(names, ", "));
  }
  return LoadChatTemplateFile(options.choice, std::move(tokens));
}

}  // namespace kvlathe
