#include "tokenizer/chat/chat_families.h"

#include <fmt/ranges.h>

namespace kvlathe {
namespace {

using System = ChatFormat::System;
using Filter = ChatFormat::Filter;

// Qwen, Yi, OpenHermes and many others.
ChatFormat ChatMl(const ChatContext&) {
  ChatFormat f;
  f.system = {"<|im_start|>system\n", "<|im_end|>\n"};
  f.user = {"<|im_start|>user\n", "<|im_end|>\n"};
  f.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
  f.answer_prefix = f.assistant.prefix;
  f.ends = {"<|im_end|>"};
  return f;
}

// Qwen3 beside its models that only think or never do.
ChatFormat Qwen3(const ChatContext& context) {
  ChatFormat f = ChatMl(context);
  f.thinks = true;
  f.no_thoughts = "<think>\n\n</think>\n\n";
  f.tools = QwenTools();
  return f;
}

// Hermes 2 Pro and Hermes 3.
ChatFormat Hermes(const ChatContext& context) {
  ChatFormat f = ChatMl(context);
  f.start = context.bos;
  f.tools = HermesTools();
  return f;
}

ChatFormat Llama2(const ChatContext& context) {
  ChatFormat f;
  f.system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
  f.user = {context.bos + "[INST] ", " [/INST]"};
  f.assistant = {" ", " " + context.eos};
  f.system_place = System::kFirstUser;
  f.user_filter = Filter::kTrim;
  f.assistant_filter = Filter::kTrim;
  f.filters_merged = true;
  f.alternates = true;
  return f;
}

ChatFormat Llama3(const ChatContext& context) {
  ChatFormat f;
  f.start = context.bos;
  f.system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"};
  f.user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"};
  f.assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"};
  f.answer_prefix = f.assistant.prefix;
  f.system_filter = Filter::kTrim;
  f.user_filter = Filter::kTrim;
  f.assistant_filter = Filter::kTrim;
  f.ends = {"<|eot_id|>"};
  return f;
}

// Llama 3.1 to 3.3: always a system message, which begins with two dates. Theirs is fixed unless
// the template asks for today's.
ChatFormat Llama31(const ChatContext& context) {
  ChatFormat f = Llama3(context);
  f.system.prefix += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  f.always_has_system = true;
  f.ends.push_back("<|eom_id|>");
  f.tools = Llama31Tools();
  return f;
}

// The templates of Mistral's first models have no system message; as in its later ones, it goes in
// front of the first user message.
ChatFormat MistralV1(const ChatContext& context) {
  ChatFormat f;
  f.start = context.bos;
  f.system = {"", "\n\n"};
  f.user = {"[INST] ", " [/INST]"};
  f.assistant = {"", context.eos};
  f.system_place = System::kFirstUser;
  f.alternates = true;
  return f;
}

ChatFormat MistralV3(const ChatContext& context) {
  ChatFormat f = MistralV1(context);
  f.user = {"[INST] ", "[/INST]"};
  f.assistant = {" ", context.eos};
  f.assistant_filter = Filter::kTrim;
  f.system_place = System::kLastUser;
  return f;
}

ChatFormat MistralV3Tekken(const ChatContext& context) {
  ChatFormat f = MistralV3(context);
  f.user = {"[INST]", "[/INST]"};
  f.assistant = {"", context.eos};
  f.assistant_filter = Filter::kNone;
  return f;
}

ChatFormat MistralV7(const ChatContext& context) {
  ChatFormat f = MistralV3(context);
  f.system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"};
  f.assistant_filter = Filter::kNone;
  f.system_place = System::kOwnTurn;
  f.alternates = false;
  return f;
}

ChatFormat Phi3(const ChatContext&) {
  ChatFormat f;
  f.system = {"<|system|>\n", "<|end|>\n"};
  f.user = {"<|user|>\n", "<|end|>\n"};
  f.assistant = {"<|assistant|>\n", "<|end|>\n"};
  f.answer_prefix = f.assistant.prefix;
  f.ends = {"<|end|>"};
  return f;
}

// Falcon 7B and 40B Instruct. Their answers run on into a turn of the user, hence the second end.
ChatFormat Falcon(const ChatContext&) {
  ChatFormat f;
  f.user = {"\n\nUser: ", ""};
  f.assistant = {"\n\nAssistant: ", ""};
  f.answer_prefix = "\n\nAssistant:";
  f.system_filter = Filter::kTrim;
  f.user_filter = Filter::kTrimAndJoin;
  f.assistant_filter = Filter::kTrimAndJoin;
  f.alternates = true;
  f.ends = {"\nUser:"};
  return f;
}

ChatFormat Zephyr(const ChatContext& context) {
  ChatFormat f;
  f.system = {"<|system|>\n", context.eos + "\n"};
  f.user = {"<|user|>\n", context.eos + "\n"};
  f.assistant = {"<|assistant|>\n", context.eos + "\n"};
  f.answer_prefix = f.assistant.prefix;
  return f;
}

ChatFormat Gemma(const ChatContext& context) {
  ChatFormat f;
  f.start = context.bos;
  f.user = {"<start_of_turn>user\n", "<end_of_turn>\n"};
  f.assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"};
  f.answer_prefix = f.assistant.prefix;
  f.system_place = System::kRefused;
  f.user_filter = Filter::kTrim;
  f.assistant_filter = Filter::kTrim;
  f.alternates = true;
  f.ends = {"<end_of_turn>"};
  return f;
}

struct Family {
  const char* name;
  ChatFormat (*make)(const ChatContext&);
};

constexpr Family kFamilies[] = {{"chatml", ChatMl},
                                {"qwen3", Qwen3},
                                {"hermes", Hermes},
                                {"llama2", Llama2},
                                {"llama3", Llama3},
                                {"llama3.1", Llama31},
                                {"mistral-v1", MistralV1},
                                {"mistral-v3", MistralV3},
                                {"mistral-v3-tekken", MistralV3Tekken},
                                {"mistral-v7", MistralV7},
                                {"phi3", Phi3},
                                {"falcon", Falcon},
                                {"zephyr", Zephyr},
                                {"gemma", Gemma}};

}  // namespace

StatusOr<ChatFormat> NamedChatFormat(std::string_view family, const ChatContext& context) {
  for (const Family& known : kFamilies) {
    if (known.name != family) continue;
    ChatFormat format = known.make(context);
    format.family = known.name;
    return format;
  }
  return Error(StatusCode::kInvalidArgument, "unknown chat template '{}'; there are {}", family,
               fmt::join(ChatFamilyNames(), ", "));
}

std::vector<std::string> ChatFamilyNames() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

}  // namespace kvlathe
