#include "chat/template_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "io/files.h"
#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/gguf/gguf_tokenizer.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr const char* kFurtherNames[] = {"tool_use", "rag"};

Status NoDefault(std::string_view key, std::string_view names) {
  return Error(StatusCode::kNotFound,
               "{} has no default among {}; --chat-template takes a name or a file", key, names);
}

// Of a list of templates: [{"name": "default", "template": "..."}, ...].
StatusOr<ChatTemplateTexts> TextsOfList(const nlohmann::json& list) {
  std::vector<std::string> names;
  bool has_default = false;
  ChatTemplateTexts texts;
  for (const nlohmann::json& entry : list) {
    KVL_ASSIGN_OR_RETURN(const std::string name, StringField(entry, "name"));
    KVL_ASSIGN_OR_RETURN(std::string text, StringField(entry, "template"));
    names.push_back(name);
    if (name == "default") {
      has_default = true;
      texts.text = std::move(text);
    } else {
      texts.named.push_back({name, std::move(text)});
    }
  }
  if (has_default) return texts;
  return NoDefault("\"chat_template\"", fmt::format("{}", fmt::join(names, ", ")));
}

StatusOr<ChatTemplateTexts> ReadFromTokenizerConfig(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(path));
  const nlohmann::json& field = FieldOrNull(config, "chat_template");
  if (field.is_array()) return TextsOfList(field);
  ChatTemplateTexts texts;
  KVL_ASSIGN_OR_RETURN(texts.text, StringField(config, "chat_template"));
  return texts;
}

StatusOr<ChatTemplateTexts> ReadFromDirectory(const std::string& path) {
  ChatTemplateTexts texts;
  texts.place = path + "/chat_template.jinja";
  if (FileExists(texts.place)) {
    KVL_ASSIGN_OR_RETURN(texts.text, ReadTextFile(texts.place, kMaxTemplateBytes));
    for (const char* const name : kFurtherNames) {
      const std::string further = fmt::format("{}/additional_chat_templates/{}.jinja", path, name);
      if (!FileExists(further)) continue;
      KVL_ASSIGN_OR_RETURN(std::string text, ReadTextFile(further, kMaxTemplateBytes));
      texts.named.push_back({name, std::move(text)});
    }
    return texts;
  }
  const std::string config = path + "/tokenizer_config.json";
  if (FileExists(config)) {
    auto found = ReadFromTokenizerConfig(config);
    if (!found.ok()) return InFile(config, found.status());
    texts = *std::move(found);
  }
  texts.place = config;
  return texts;
}

StatusOr<ChatTemplate> MakeFrom(const std::string& path, const ChatTemplateTexts& texts,
                                NamedTokens tokens) {
  if (texts.text.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: the model has no chat template; --chat-template takes a file, or one of {}",
                 path, fmt::join(ChatTemplateNames(), ", "));
  }
  return ChatTemplate::Make(texts, std::move(tokens));
}

}  // namespace

StatusOr<ChatTemplate> LoadGgufChatTemplate(const GgufFile& file, NamedTokens tokens) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  ChatTemplateTexts texts;
  texts.place = fmt::format("{}: {}", file.path(), kKey);
  KVL_ASSIGN_OR_RETURN(texts.text, file.TextOr(kKey, ""));
  size_t n_bytes = texts.text.size();
  for (const char* const name : kFurtherNames) {
    KVL_ASSIGN_OR_RETURN(std::string text, file.TextOr(fmt::format("{}.{}", kKey, name), ""));
    n_bytes = std::max(n_bytes, text.size());
    if (!text.empty()) texts.named.push_back({name, std::move(text)});
  }
  if (static_cast<int64_t>(n_bytes) > kMaxTemplateBytes) {
    return Error(StatusCode::kDataLoss, "{}: {} bytes, allowed are {}", texts.place, n_bytes,
                 kMaxTemplateBytes);
  }
  if (texts.text.empty()) {
    // The names of further templates; the default is not among them.
    KVL_ASSIGN_OR_RETURN(const auto* names, file.Texts("tokenizer.chat_templates"));
    if (names != nullptr && !names->empty()) {
      return InFile(file.path(), NoDefault(kKey, fmt::format("{}", fmt::join(*names, ", "))));
    }
  }
  return MakeFrom(file.path(), texts, std::move(tokens));
}

StatusOr<ChatTemplate> LoadChatTemplate(const std::string& path, NamedTokens tokens) {
  if (!DirectoryExists(path)) {
    KVL_ASSIGN_OR_RETURN(const GgufFile file, OpenGgufModel(path));
    return LoadGgufChatTemplate(file, std::move(tokens));
  }
  KVL_ASSIGN_OR_RETURN(const ChatTemplateTexts texts, ReadFromDirectory(path));
  return MakeFrom(path, texts, std::move(tokens));
}

StatusOr<ChatTemplate> LoadChatTemplateFile(const std::string& path, NamedTokens tokens) {
  ChatTemplateTexts texts;
  texts.place = path;
  KVL_ASSIGN_OR_RETURN(texts.text, ReadTextFile(path, kMaxTemplateBytes));
  return ChatTemplate::Make(texts, std::move(tokens));
}

std::vector<std::string> ChatTemplateNames() {
  return {"chatml",     "qwen3",      "hermes",
          "llama2",     "llama3",     "llama3.1",
          "mistral-v1", "mistral-v3", "mistral-v3-tekken",
          "mistral-v7", "phi3",       "falcon",
          "zephyr",     "gemma"};
}

NamedTokens TokensByName(const Tokenizer& tokenizer, const std::string& path) {
  NamedTokens tokens;
  const auto add = [&](const std::string& name, std::string text) {
    const auto is_named = [&](const auto& token) { return token.first == name; };
    if (std::ranges::none_of(tokens, is_named)) tokens.push_back({name, std::move(text)});
  };
  if (const auto id = tokenizer.bos_id()) add("bos_token", tokenizer.TokenBytes(*id, true));
  if (const auto id = tokenizer.eos_id()) add("eos_token", tokenizer.TokenBytes(*id, true));
  const auto config = ReadJsonFile(path + "/tokenizer_config.json");
  if (path.empty() || !config.ok() || !config->is_object()) return tokens;
  for (const auto& [key, value] : config->items()) {
    if (!key.ends_with("_token")) continue;
    const nlohmann::json& text = value.is_object() ? FieldOrNull(value, "content") : value;
    if (text.is_string()) add(key, text.get<std::string>());
  }
  return tokens;
}

}  // namespace kvlathe
