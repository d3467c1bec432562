#include "tokenizer/chat/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

// str.isspace: White_Space and the four separators U+001C to U+001F.
bool IsPythonSpace(char32_t code) { return IsUnicodeSpace(code) || (code >= 0x1C && code <= 0x1F); }

bool IsSpaceAt(std::string_view text, size_t pos) {
  const Utf8Char c = ReadUtf8(text, pos);
  return c.state == Utf8Char::State::kWhole && IsPythonSpace(c.code);
}

std::string Filtered(std::string_view content, ChatFormat::Filter filter) {
  if (filter == ChatFormat::Filter::kNone) return std::string(content);
  const std::string stripped(StripLikePython(content));
  if (filter == ChatFormat::Filter::kTrim) return stripped;
  return absl::StrReplaceAll(absl::StrReplaceAll(stripped, {{"\r\n", "\n"}}), {{"\n\n", "\n"}});
}

std::string InTurn(const ChatFormat::Turn& turn, std::string_view content) {
  return fmt::format("{}{}{}", turn.prefix, content, turn.suffix);
}

Status CheckConversation(const ChatFormat& format, std::span<const ChatMessage> messages) {
  if (messages.empty() || messages.back().role != "user") {
    return Error(StatusCode::kInvalidArgument, "the last message must be one of the user");
  }
  std::string_view previous = "assistant";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system") {
      if (i > 0) {
        return Error(StatusCode::kInvalidArgument,
                     "message {} is a system message; only the first can be one", i + 1);
      }
      if (format.system_place == ChatFormat::System::kRefused) {
        return Error(StatusCode::kInvalidArgument,
                     "this model's chat template takes no system message");
      }
      continue;
    }
    if (role != "user" && role != "assistant") {
      return Error(StatusCode::kInvalidArgument,
                   "message {} has the role '{}'; there are system, user and assistant", i + 1,
                   role);
    }
    if (format.alternates && role == previous) {
      return Error(StatusCode::kInvalidArgument,
                   "message {}: this model's chat template wants user and assistant to alternate, "
                   "beginning with the user",
                   i + 1);
    }
    previous = role;
  }
  return OkStatus();
}

}  // namespace

std::string_view WithoutThoughts(std::string_view content) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = content.rfind(kEnd);
  if (end == std::string_view::npos) return content;
  content.remove_prefix(end + kEnd.size());
  content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
  return content;
}

std::string_view StripLikePython(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size() && IsSpaceAt(text, begin)) {
    begin += static_cast<size_t>(ReadUtf8(text, begin).n_bytes);
  }
  text.remove_prefix(begin);
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    const bool ends_here = last + static_cast<size_t>(ReadUtf8(text, last).n_bytes) == text.size();
    if (!ends_here || !IsSpaceAt(text, last)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

StatusOr<std::string> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages) {
  using System = ChatFormat::System;
  KVL_RETURN_IF_ERROR(CheckConversation(format, messages));
  std::string system;
  bool has_system = messages.front().role == "system";
  if (has_system) {
    system = Filtered(messages.front().content, format.system_filter);
    messages = messages.subspan(1);
    if (system.empty() && format.skips_empty_system) has_system = false;
  } else if (format.always_has_system) {
    system = format.default_system;
    has_system = true;
  }
  std::string text = format.start;
  if (has_system && format.system_place == System::kOwnTurn) text += InTurn(format.system, system);
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_user = messages[i].role == "user";
    const bool takes_system =
        has_system && ((format.system_place == System::kFirstUser && i == 0) ||
                       (format.system_place == System::kLastUser && i + 1 == messages.size()));
    std::string before = takes_system ? InTurn(format.system, system) : std::string();
    std::string content = messages[i].content;
    // The last message is a question, so every answer stands before the last question.
    if (format.thinks && !is_user) content = std::string(WithoutThoughts(content));
    if (format.filters_merged) content = std::exchange(before, {}) + content;
    content = before + Filtered(content, is_user ? format.user_filter : format.assistant_filter);
    text += InTurn(is_user ? format.user : format.assistant, content);
  }
  return text + format.answer_prefix;
}

}  // namespace kvlathe
