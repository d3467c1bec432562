// Where chat templates come from: a model, or a file.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "chat/chat_template.h"
#include "io/gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// From a model directory: chat_template.jinja, or else "chat_template" in tokenizer_config.json, a
// string or a list of {name, template}, of which "default" is the default; further ones stand in
// additional_chat_templates/NAME.jinja. From a GGUF file: tokenizer.chat_template and
// tokenizer.chat_template.NAME. kNotFound: none is there; kDataLoss: a damaged file;
// kInvalidArgument and kResourceExhausted: it cannot be read as Jinja.
StatusOr<ChatTemplate> LoadChatTemplate(const std::string& path, NamedTokens tokens);
// From a GGUF file that is open already.
StatusOr<ChatTemplate> LoadGgufChatTemplate(const GgufFile& file, NamedTokens tokens);

// A file that is a template.
StatusOr<ChatTemplate> LoadChatTemplateFile(const std::string& path, NamedTokens tokens);

// The names of the files share/chat_templates/NAME.jinja, in the order of help texts.
std::vector<std::string> ChatTemplateNames();

// bos_token and eos_token of the tokenizer, and for a model directory what tokenizer_config.json
// names besides (pad_token, unk_token, ...). An empty path: those of the tokenizer alone.
NamedTokens TokensByName(const Tokenizer& tokenizer, const std::string& path);

}  // namespace kvlathe
