#include "runtime/chat_template_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "chat/template_files.h"
#include "io/files.h"
#include "runtime/shared_texts.h"

namespace kvlathe {

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
