// The chat template of a model. Templates are Jinja programs; this recognises those of the families
// in chat_families.h by what they print and renders them without running them. A template that
// prints a text of no family is refused. Conditions are not evaluated: a template that prints a
// family's texts under other conditions is taken for that family.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "tokenizer/chat/chat_families.h"
#include "tokenizer/chat/chat_format.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// The texts of BOS and EOS, and today's date.
ChatContext ChatContextOf(const Tokenizer& tokenizer);

// From a model directory: chat_template.jinja, or else "chat_template" in tokenizer_config.json, a
// string or a list of {name, template} of which "default" counts. From a GGUF file:
// tokenizer.chat_template, which is the default where there are several. Where there is one named
// "tool_use" (beside chat_template.jinja: additional_chat_templates/tool_use.jinja), conversations
// with tools are its matter. kNotFound: none is there;
// kUnimplemented: a template that is not recognised; kDataLoss: a damaged file.
StatusOr<ChatFormat> LoadChatFormat(const std::string& path, const ChatContext& context);
// From a GGUF file that is open already.
StatusOr<ChatFormat> LoadGgufChatFormat(const GgufFile& file, const ChatContext& context);

// kUnimplemented, with what was found and what --chat-template takes.
StatusOr<ChatFormat> RecogniseChatTemplate(std::string_view text, const ChatContext& context);

}  // namespace kvlathe
