#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/chat_template_scan.h"
#include "tokenizer/chat/tool_recognise.h"

namespace kvlathe {
namespace {

using System = ChatFormat::System;
using Filter = ChatFormat::Filter;
using Strings = std::initializer_list<std::string_view>;

// The first string that is none of `known`.
std::optional<std::string> UnknownString(const ScannedTemplate& t, Strings known) {
  for (const std::string& text : t.strings) {
    if (std::ranges::find(known, text) == known.end()) return text;
  }
  return std::nullopt;
}

Status NotRecognised(std::string_view what) {
  return Error(StatusCode::kUnimplemented,
               "the chat template {}, which this build cannot render; --chat-template NAME forces "
               "one of {}",
               what, fmt::join(ChatFamilyNames(), ", "));
}

// One printable line of at most 60 bytes.
std::string Quoted(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, 60)) {
    line += static_cast<unsigned char>(c) < 32 || c == 127 ? ' ' : c;
  }
  return "'" + line + (text.size() > 60 ? "...'" : "'");
}

// Templates with tools print much that no conversation without tools shows; for them, the parts
// that a recogniser asks for must do.
Status CheckStrings(const ScannedTemplate& t, std::string_view family, Strings known) {
  if (t.Has("tools")) return OkStatus();
  const std::optional<std::string> unknown = UnknownString(t, known);
  if (!unknown) return OkStatus();
  return NotRecognised(fmt::format("looks like {}, but prints {}", family, Quoted(*unknown)));
}

Status OtherParts(std::string_view family) {
  return NotRecognised(
      fmt::format("looks like {}, but puts a message together differently", family));
}

// Whether BOS stands alone in front of everything.
bool PrintsBosFirst(const ScannedTemplate& t) {
  size_t first = t.code.find("{{");
  while (first != std::string::npos &&
         std::string_view(t.code).substr(first).starts_with("{{raise_exception(")) {
    first = t.code.find("{{", first + 2);
  }
  return first != std::string::npos &&
         std::string_view(t.code).substr(first).starts_with("{{bos_token}}");
}

// Whether there is `before`, the content of a message and `after`: the content as such, or a
// variable that is never set to anything but `values`.
bool HasTurn(const ScannedTemplate& t, std::string_view before, std::string_view after,
             const std::vector<std::string>& values = {"message['content']"}) {
  if (t.Has(fmt::format("{}message['content']{}", before, after))) return true;
  if (!t.Has(fmt::format("{}content{}", before, after))) return false;
  constexpr std::string_view kSet = "{%setcontent=";
  for (size_t at = t.code.find(kSet); at != std::string::npos; at = t.code.find(kSet, at + 1)) {
    const std::string_view value = std::string_view(t.code).substr(at + kSet.size());
    if (std::ranges::none_of(values, [&](const auto& v) { return value.starts_with(v + "%}"); })) {
      return false;
    }
  }
  return true;
}

// {{'<|im_start|>system\nTEXT<|im_end|>\n'}}: the system message of a conversation without one.
std::string DefaultSystemOfChatMl(const ScannedTemplate& t) {
  constexpr std::string_view kBegin = "<|im_start|>system\n";
  constexpr std::string_view kEnd = "<|im_end|>\n";
  for (const std::string_view text : t.strings) {
    if (text.size() <= kBegin.size() + kEnd.size()) continue;
    if (!text.starts_with(kBegin) || !text.ends_with(kEnd)) continue;
    return std::string(text.substr(kBegin.size(), text.size() - kBegin.size() - kEnd.size()));
  }
  return {};
}

StatusOr<ChatFormat> RecogniseChatMl(const ScannedTemplate& t, const ChatContext& context) {
  if (IsQwen3(t)) return NamedChatFormat("qwen3", context);
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("chatml", context));
  for (const std::string_view part : {"<|im_sep|>", "<think>", "|trim", "reasoning"}) {
    if (t.Has(part)) return NotRecognised(fmt::format("looks like ChatML with {}", Quoted(part)));
  }
  f.default_system = DefaultSystemOfChatMl(t);
  f.always_has_system = !f.default_system.empty();
  const std::string default_turn = f.system.prefix + f.default_system + f.system.suffix;
  KVL_RETURN_IF_ERROR(
      CheckStrings(t, "ChatML",
                   {"<|im_start|>", "\n", "<|im_end|>\n", "<|im_start|>assistant\n",
                    "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", default_turn}));
  // With tools: a default whose turn is put together from several strings.
  for (const std::string& text : t.strings) {
    if (text.starts_with(f.system.prefix) && text != f.system.prefix && text != default_turn) {
      return OtherParts("ChatML");
    }
  }
  if (PrintsBosFirst(t)) {
    f.start = context.bos;
  } else if (t.Has("bos_token")) {
    return OtherParts("ChatML");
  }
  if (t.Has("'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>\n'")) {
    f.tools = RecogniseQwenTools(t, f);
    return f;
  }
  // Yi 1.5: the system message stands alone, and the user's turn opens the answer.
  if ((t.Has("{{system_message}}") || t.Has("{{messages[0]['content']}}")) &&
      HasTurn(t, "'<|im_start|>user\n'+", "+'<|im_end|>\n<|im_start|>assistant\n'") &&
      HasTurn(t, "{{", "+'<|im_end|>\n'}}")) {
    f.system = {};
    f.alternates = true;
    return f;
  }
  return OtherParts("ChatML");
}

StatusOr<ChatFormat> RecogniseLlama3(const ScannedTemplate& t, const ChatContext& context) {
  constexpr std::string_view kDates = "Cutting Knowledge Date: December 2023\n";
  const bool has_dates = t.Has(kDates);
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat(has_dates ? "llama3.1" : "llama3", context));
  const std::string head =
      fmt::format("<|start_header_id|>system<|end_header_id|>\n\n{}Today Date: ", kDates);
  KVL_RETURN_IF_ERROR(
      CheckStrings(t, "Llama 3",
                   {"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>",
                    "<|start_header_id|>assistant<|end_header_id|>\n\n",
                    "<|start_header_id|>system<|end_header_id|>\n\n", kDates, head,
                    "Today Date: ", "\n\n", "26 Jul 2024", "26 July 2024", "%d %b %Y"}));
  if (!t.Has("bos_token")) f.start.clear();
  const std::string_view turn =
      "'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+"
      "message['content']";
  const bool trims = t.Has(fmt::format("{}|trim+'<|eot_id|>'", turn));
  if (!trims && !t.Has(fmt::format("{}+'<|eot_id|>'", turn))) return OtherParts("Llama 3");
  if (!trims) f.system_filter = f.user_filter = f.assistant_filter = Filter::kNone;
  f.tools.reset();
  if (!has_dates) return f;
  if (trims) f.tools = RecogniseLlama31Tools(t);
  std::string date = "26 Jul 2024";
  if (t.Has("'26 July 2024'")) date = "26 July 2024";
  if (t.Has("strftime_now('%d %b %Y')")) date = context.today;
  f.system.prefix = fmt::format("{}{}\n\n", head, date);
  return f;
}

// A text that the system message is set to where there is none. Older templates of Llama 2 carry
// one in a branch that only some switch on.
struct DefaultSystem {
  std::string text;
  bool is_on = false;
};

DefaultSystem DefaultSystemOfLlama2(const ScannedTemplate& t) {
  constexpr std::string_view kSet = "{%setsystem_message='";
  const size_t set = t.code.find(kSet);
  if (set == std::string::npos || !t.code.starts_with("{%ifmessages[0]['role']=='system'%}")) {
    return {};
  }
  const size_t branch = t.code.rfind("{%el", set);
  if (branch == std::string::npos || branch < t.code.rfind("{%if", set)) return {};
  const std::string_view condition = std::string_view(t.code).substr(branch);
  const bool is_on = condition.starts_with("{%else%}") || condition.starts_with("{%eliftrue==true");
  if (!is_on && !condition.starts_with("{%eliffalse==true")) return {};
  return {t.StringAt(set + kSet.size() - 1), is_on};
}

StatusOr<ChatFormat> RecogniseLlama2(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("llama2", context));
  const DefaultSystem without = DefaultSystemOfLlama2(t);
  KVL_RETURN_IF_ERROR(CheckStrings(
      t, "Llama 2", {"<<SYS>>\n", "\n<</SYS>>\n\n", "[INST] ", " [/INST]", " ", without.text}));
  if (without.is_on && !without.text.empty()) {
    f.default_system = without.text;
    f.always_has_system = true;
  }
  const std::string system = "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+";
  const std::vector<std::string> values = {"message['content']", system + "message['content']",
                                           system + "content"};
  if (!t.Has(system + "message['content']%}") && !t.Has(system + "content%}")) {
    return OtherParts("Llama 2");
  }
  const bool bos_each = t.Has("bos_token+'[INST] '+content");
  if (!bos_each) {
    f.user.prefix = "[INST] ";
    if (t.code.starts_with("{{bos_token}}")) f.start = context.bos;
  }
  if (HasTurn(t, "'[INST] '+", "|trim+' [/INST]'", values) &&
      HasTurn(t, "' '+", "|trim+' '+eos_token", values)) {
    return f;
  }
  if (HasTurn(t, "'[INST] '+", "+' [/INST]'", values) &&
      HasTurn(t, "' '+", "+' '+eos_token", values)) {
    f.user_filter = f.assistant_filter = Filter::kNone;
    return f;
  }
  return OtherParts("Llama 2");
}

// The user's turn: Mistral's models differ in the spaces around [INST].
bool ReadMistralUserTurn(const ScannedTemplate& t, ChatFormat* f) {
  const std::vector<std::string> values = {"message['content']",
                                           "system_message+'\n\n'+message['content']",
                                           "system_message+'\n\n'+content"};
  for (const std::string_view open : {"[INST] ", " [INST] ", "[INST]"}) {
    for (const std::string_view close : {" [/INST]", "[/INST]"}) {
      if (!HasTurn(t, fmt::format("'{}'+", open), fmt::format("+'{}'", close), values)) continue;
      f->user = {std::string(open), std::string(close)};
      return true;
    }
  }
  return false;
}

bool ReadMistralAssistantTurn(const ScannedTemplate& t, const ChatContext& context, ChatFormat* f) {
  const bool trims = t.Has("' '+message['content']|trim+eos_token}}");
  const bool leads_with_space = trims || t.Has("' '+message['content']+eos_token}}");
  const bool ends_with_space = t.Has("{{message['content']+eos_token+' '}}");
  if (!leads_with_space && !ends_with_space && !t.Has("{{message['content']+eos_token}}")) {
    return false;
  }
  f->assistant = {leads_with_space ? " " : "", context.eos + (ends_with_space ? " " : "")};
  f->assistant_filter = trims ? Filter::kTrim : Filter::kNone;
  return true;
}

StatusOr<ChatFormat> RecogniseMistral(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("mistral-v1", context));
  KVL_RETURN_IF_ERROR(
      CheckStrings(t, "Mistral",
                   {"[INST] ", " [INST] ", "[INST]", " [/INST]", "[/INST]", " ", "\n\n",
                    "[SYSTEM_PROMPT] ", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}));
  if (!PrintsBosFirst(t)) return OtherParts("Mistral");
  if (t.Has("default_system_message") || !ReadMistralUserTurn(t, &f) ||
      !ReadMistralAssistantTurn(t, context, &f)) {
    return OtherParts("Mistral");
  }
  if (!t.Has("[SYSTEM_PROMPT]")) {
    if (t.Has("loop.lastandsystem_message")) f.system_place = System::kLastUser;
    return f;
  }
  f.alternates = t.Has("%2==0");
  f.system_place = System::kOwnTurn;
  for (const std::string_view open : {"[SYSTEM_PROMPT] ", "[SYSTEM_PROMPT]"}) {
    if (!t.Has(fmt::format("'{}'+message['content']+'[/SYSTEM_PROMPT]'", open))) continue;
    f.system = {std::string(open), "[/SYSTEM_PROMPT]"};
    return f;
  }
  return OtherParts("Mistral");
}

StatusOr<ChatFormat> RecognisePhi3(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("phi3", context));
  KVL_RETURN_IF_ERROR(CheckStrings(t, "Phi-3",
                                   {"<|user|>\n", "<|end|>\n", "<|end|>\n<|assistant|>\n",
                                    "<|assistant|>\n", "<|system|>\n", "<|", "|>\n"}));
  if (PrintsBosFirst(t)) {
    f.start = context.bos;
  } else if (t.Has("bos_token")) {
    return OtherParts("Phi-3");
  }
  if (t.Has("'<|'+message['role']+'|>\n'+message['content']+'<|end|>\n'")) return f;
  f.skips_empty_system = t.Has("=='system'andmessage['content']");
  if (!t.Has("'<|system|>\n'+message['content']+'<|end|>\n'")) f.system_place = System::kDropped;
  if (t.Has("'<|user|>\n'+message['content']+'<|end|>\n<|assistant|>\n'}}") &&
      t.Has("{{message['content']+'<|end|>\n'}}")) {
    f.alternates = true;  // every user's turn opens an answer
    return f;
  }
  if (t.Has("'<|user|>\n'+message['content']+'<|end|>\n'}}") &&
      t.Has("'<|assistant|>\n'+message['content']+'<|end|>\n'}}")) {
    return f;
  }
  return OtherParts("Phi-3");
}

StatusOr<ChatFormat> RecogniseZephyr(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("zephyr", context));
  KVL_RETURN_IF_ERROR(CheckStrings(
      t, "Zephyr", {"<|user|>\n", "<|system|>\n", "<|assistant|>\n", "\n", "<|", "|>\n"}));
  if (!t.Has("{{'<|assistant|>\n'}}")) return OtherParts("Zephyr");
  constexpr std::string_view kEnd = "message['content']+eos_token+'\n'}}";
  if (t.Has(fmt::format("{{{{'<|'+message['role']+'|>\n'+{}", kEnd))) return f;
  for (const std::string_view role : {"user", "system", "assistant"}) {
    if (!t.Has(fmt::format("{{{{'<|{}|>\n'+{}", role, kEnd))) return OtherParts("Zephyr");
  }
  return f;
}

StatusOr<ChatFormat> RecogniseGemma(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("gemma", context));
  KVL_RETURN_IF_ERROR(
      CheckStrings(t, "Gemma",
                   {"<start_of_turn>", "\n", "<end_of_turn>\n", "model", "user", "assistant",
                    "\n\n", "<start_of_turn>model\n", "<start_of_image>"}));
  if (!t.Has("bos_token")) {
    f.start.clear();
  } else if (!PrintsBosFirst(t)) {
    return OtherParts("Gemma");
  }
  for (const std::string_view role :
       {"role", "('model'ifmessage['role']=='assistant'else'user')",
        "('model'ifmessage['role']=='assistant'elsemessage['role'])"}) {
    const std::string turn = fmt::format("'<start_of_turn>'+{}+'\n'", role);
    if (t.Has(turn + "+message['content']|trim+'<end_of_turn>\n'")) return f;
    const bool has_prefix =
        (t.Has(turn + "+(first_user_prefixifloop.firstelse'')}}") &&
         t.Has("{{message['content']|trim}}") && t.Has("{{'<end_of_turn>\n'}}")) ||
        t.Has(turn +
              "}}{%ifloop.first%}{{first_user_prefix}}{%endif%}"
              "{{message['content']|trim+'<end_of_turn>\n'}}");
    if (!has_prefix) continue;
    f.system = {"", "\n\n"};
    f.system_place = System::kFirstUser;
    f.tools = Gemma3Tools();
    return f;
  }
  return OtherParts("Gemma");
}

// Falcon 180B, and other templates with a line for each message.
StatusOr<ChatFormat> RecogniseFalconLines(const ScannedTemplate& t, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("falcon", context));
  const std::string name = t.Has("'Falcon: '") ? "Falcon" : "Assistant";
  KVL_RETURN_IF_ERROR(CheckStrings(
      t, "Falcon", {"User: ", "System: ", name + ": ", "\n", name + ":", "\n" + name + ":"}));
  const bool joins_lines = t.Has("notloop.first%}{{'\n'}}") || t.Has("ornotloop.last%}{{'\n'}}") ||
                           t.Has("message['content']+'\n'}}{%endfor%}");
  if (!joins_lines || !t.Has(name + ":'}}")) return OtherParts("Falcon");
  if (t.code.starts_with("{{bos_token}}")) f.start = context.bos;
  f.system = {"System: ", "\n"};
  f.user = {"User: ", "\n"};
  f.assistant = {name + ": ", "\n"};
  f.answer_prefix = name + ":";
  if (!t.Has("'System: '")) return OtherParts("Falcon");
  f.system_filter = f.user_filter = f.assistant_filter = Filter::kNone;
  f.alternates = false;
  return f;
}

StatusOr<ChatFormat> RecogniseFalcon(const ScannedTemplate& t, const ChatContext& context) {
  if (t.Has("'User: '")) return RecogniseFalconLines(t, context);
  KVL_ASSIGN_OR_RETURN(ChatFormat f, NamedChatFormat("falcon", context));
  KVL_RETURN_IF_ERROR(CheckStrings(t, "Falcon", {"\n\n", ": ", "\r\n", "\n", "\n\nAssistant:"}));
  const bool prints_system =
      t.Has("{{system_message|trim}}") || t.Has("{{messages[0]['content']|trim}}");
  const bool is_known = prints_system && t.Has("{{'\n\nAssistant:'}}") &&
                        t.Has(
                            "{{'\n\n'+message['role']|title+': '+message['content']|trim"
                            "|replace('\r\n','\n')|replace('\n\n','\n')}}");
  if (!is_known) return OtherParts("Falcon");
  return f;
}

struct Recogniser {
  std::string_view marker;
  StatusOr<ChatFormat> (*recognise)(const ScannedTemplate&, const ChatContext&);
};

// The first whose marker is there counts.
constexpr Recogniser kRecognisers[] = {
    {"<|im_start|>", RecogniseChatMl},   {"<|start_header_id|>", RecogniseLlama3},
    {"<<SYS>>", RecogniseLlama2},        {"[INST]", RecogniseMistral},
    {"<start_of_turn>", RecogniseGemma}, {"<|end|>", RecognisePhi3},
    {"<|user|>", RecogniseZephyr},       {"<|assistant|>", RecogniseZephyr},
    {"'User: '", RecogniseFalcon},       {"'\n\n'+message['role']|title+': '", RecogniseFalcon},
};

}  // namespace

StatusOr<ChatFormat> RecogniseChatTemplate(std::string_view text, const ChatContext& context) {
  KVL_ASSIGN_OR_RETURN(const ScannedTemplate scanned, ScanTemplate(text));
  for (const Recogniser& r : kRecognisers) {
    if (!scanned.Has(r.marker)) continue;
    if (scanned.has_stray_space) return NotRecognised("has white space between its turns");
    // With tools, CheckStrings does not look at it.
    if (!scanned.raw.empty() && scanned.Has("tools")) {
      return NotRecognised(fmt::format("has {} between its blocks", Quoted(scanned.raw)));
    }
    return r.recognise(scanned, context);
  }
  return NotRecognised(fmt::format("begins with {}", Quoted(text)));
}

}  // namespace kvlathe
