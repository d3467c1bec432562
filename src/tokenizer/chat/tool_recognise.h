// Which of the known ways a template writes tools.
#pragma once

#include <optional>
#include <string_view>

#include "tokenizer/chat/chat_format.h"
#include "tokenizer/chat/chat_template_scan.h"
#include "tokenizer/chat/tool_format.h"

namespace kvlathe {

// Of a template of ChatML with tools in the way of Qwen2.5, of Qwen3, of Llama 3.1 to 3.3 and, in a
// template of its own, of Hermes. Nothing where the template prints anything else than theirs does:
// tools are then refused, and conversations without tools are rendered all the same.
std::optional<ToolFormat> RecogniseQwenTools(const ScannedTemplate& t, const ChatFormat& format);
std::optional<ToolFormat> RecogniseLlama31Tools(const ScannedTemplate& t);
std::optional<ToolFormat> RecogniseHermesTools(const ScannedTemplate& t);

// Whether a template of ChatML strips, keeps and suppresses thoughts as Qwen3's does, with its
// tools.
bool IsQwen3(const ScannedTemplate& t);

}  // namespace kvlathe
