#include "tokenizer/chat/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <vector>

#include "io/files.h"
#include "tokenizer/chat/chat_template_scan.h"
#include "tokenizer/chat/tool_recognise.h"
#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/gguf/gguf_tokenizer.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;

Status NoDefault(std::string_view key, std::string_view names) {
  return Error(StatusCode::kUnimplemented,
               "{} has no default among {}; --chat-template NAME forces one of {}", key, names,
               fmt::join(ChatFamilyNames(), ", "));
}

struct TemplateTexts {
  std::string text;      // empty when the model says nothing of a template
  std::string tool_use;  // the template for conversations with tools; empty: it is no other one
};

// What tools become by a template of their own. It begins as the other one does, or is not known.
std::optional<ToolFormat> ToolsOf(const std::string& tool_use, const ChatFormat& format,
                                  const ChatContext& context) {
  const auto scanned = ScanTemplate(tool_use);
  if (!scanned.ok() || format.family != "chatml" || format.start != context.bos) return {};
  return RecogniseHermesTools(*scanned);
}

// `place` is where the templates stand.
StatusOr<ChatFormat> Recognise(const std::string& path, const std::string& place,
                               const TemplateTexts& texts, const ChatContext& context) {
  const std::string& text = texts.text;
  if (text.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: the model has no chat template; --chat-template NAME chooses one of {}", path,
                 fmt::join(ChatFamilyNames(), ", "));
  }
  auto format = RecogniseChatTemplate(text, context);
  if (!format.ok()) return InFile(place, format.status());
  format->source = text;
  if (!texts.tool_use.empty()) format->tools = ToolsOf(texts.tool_use, *format, context);
  return format;
}

// Of a list of templates: [{"name": "default", "template": "..."}, ...].
StatusOr<TemplateTexts> TextsOfList(const nlohmann::json& list) {
  std::vector<std::string> names;
  bool has_default = false;
  TemplateTexts texts;
  for (const nlohmann::json& entry : list) {
    KVL_ASSIGN_OR_RETURN(const std::string name, StringField(entry, "name"));
    names.push_back(name);
    if (name == "default") {
      has_default = true;
      KVL_ASSIGN_OR_RETURN(texts.text, StringField(entry, "template"));
    } else if (name == "tool_use") {
      KVL_ASSIGN_OR_RETURN(texts.tool_use, StringField(entry, "template"));
    }
  }
  if (has_default) return texts;
  return NoDefault("\"chat_template\"", fmt::format("{}", fmt::join(names, ", ")));
}

StatusOr<TemplateTexts> ReadFromTokenizerConfig(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(path));
  const nlohmann::json& field = FieldOrNull(config, "chat_template");
  if (field.is_array()) return TextsOfList(field);
  TemplateTexts texts;
  KVL_ASSIGN_OR_RETURN(texts.text, StringField(config, "chat_template"));
  return texts;
}

}  // namespace

ChatContext ChatContextOf(const Tokenizer& tokenizer) {
  ChatContext context;
  if (const auto id = tokenizer.bos_id()) context.bos = tokenizer.TokenBytes(*id, true);
  if (const auto id = tokenizer.eos_id()) context.eos = tokenizer.TokenBytes(*id, true);
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  char today[32] = {};
  if (localtime_r(&now, &local) != nullptr) {
    std::strftime(today, sizeof(today), "%d %b %Y", &local);
  }
  context.today = today;
  return context;
}

StatusOr<ChatFormat> LoadGgufChatFormat(const GgufFile& file, const ChatContext& context) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  TemplateTexts texts;
  KVL_ASSIGN_OR_RETURN(texts.text, file.TextOr(kKey, ""));
  KVL_ASSIGN_OR_RETURN(texts.tool_use, file.TextOr("tokenizer.chat_template.tool_use", ""));
  const std::string place = fmt::format("{}: {}", file.path(), kKey);
  const size_t n_bytes = std::max(texts.text.size(), texts.tool_use.size());
  if (static_cast<int64_t>(n_bytes) > kMaxTemplateBytes) {
    return Error(StatusCode::kDataLoss, "{}: {} bytes, allowed are {}", place, n_bytes,
                 kMaxTemplateBytes);
  }
  if (texts.text.empty()) {
    // The names of further templates; the default is not among them.
    KVL_ASSIGN_OR_RETURN(const auto* names, file.Texts("tokenizer.chat_templates"));
    if (names != nullptr && !names->empty()) {
      return InFile(file.path(), NoDefault(kKey, fmt::format("{}", fmt::join(*names, ", "))));
    }
  }
  return Recognise(file.path(), place, texts, context);
}

StatusOr<ChatFormat> LoadChatFormat(const std::string& path, const ChatContext& context) {
  if (!DirectoryExists(path)) {
    KVL_ASSIGN_OR_RETURN(const GgufFile file, OpenGgufModel(path));
    return LoadGgufChatFormat(file, context);
  }
  std::string place = path + "/chat_template.jinja";
  TemplateTexts texts;
  if (FileExists(place)) {
    KVL_ASSIGN_OR_RETURN(texts.text, ReadTextFile(place, kMaxTemplateBytes));
    const std::string tool_use = path + "/additional_chat_templates/tool_use.jinja";
    if (FileExists(tool_use)) {
      KVL_ASSIGN_OR_RETURN(texts.tool_use, ReadTextFile(tool_use, kMaxTemplateBytes));
    }
  } else {
    place = path + "/tokenizer_config.json";
    if (FileExists(place)) {
      auto found = ReadFromTokenizerConfig(place);
      if (!found.ok()) return InFile(place, found.status());
      texts = *std::move(found);
    }
  }
  return Recognise(path, place, texts, context);
}

}  // namespace kvlathe
