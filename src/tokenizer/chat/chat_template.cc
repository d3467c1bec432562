#include "tokenizer/chat/chat_template.h"

#include <fmt/ranges.h>

#include <ctime>
#include <vector>

#include "io/files.h"
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

// `text` is empty when the model says nothing of a template; `place` is where it stands.
StatusOr<ChatFormat> Recognise(const std::string& path, const std::string& place,
                               std::string_view text, const ChatContext& context) {
  if (text.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: the model has no chat template; --chat-template NAME chooses one of {}", path,
                 fmt::join(ChatFamilyNames(), ", "));
  }
  auto format = RecogniseChatTemplate(text, context);
  if (!format.ok()) return InFile(place, format.status());
  return format;
}

// The default of a list of templates: [{"name": "default", "template": "..."}, ...].
StatusOr<std::string> DefaultOfList(const nlohmann::json& list) {
  std::vector<std::string> names;
  for (const nlohmann::json& entry : list) {
    KVL_ASSIGN_OR_RETURN(const std::string name, StringField(entry, "name"));
    if (name == "default") return StringField(entry, "template");
    names.push_back(name);
  }
  return NoDefault("\"chat_template\"", fmt::format("{}", fmt::join(names, ", ")));
}

// Empty when the file says nothing of a template.
StatusOr<std::string> ReadFromTokenizerConfig(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(path));
  const nlohmann::json& field = FieldOrNull(config, "chat_template");
  if (field.is_array()) return DefaultOfList(field);
  return StringField(config, "chat_template");
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
  KVL_ASSIGN_OR_RETURN(const std::string text, file.TextOr(kKey, ""));
  const std::string place = fmt::format("{}: {}", file.path(), kKey);
  if (static_cast<int64_t>(text.size()) > kMaxTemplateBytes) {
    return Error(StatusCode::kDataLoss, "{}: {} bytes, allowed are {}", place, text.size(),
                 kMaxTemplateBytes);
  }
  if (text.empty()) {
    // The names of further templates; the default is not among them.
    KVL_ASSIGN_OR_RETURN(const auto* names, file.Texts("tokenizer.chat_templates"));
    if (names != nullptr && !names->empty()) {
      return InFile(file.path(), NoDefault(kKey, fmt::format("{}", fmt::join(*names, ", "))));
    }
  }
  return Recognise(file.path(), place, text, context);
}

StatusOr<ChatFormat> LoadChatFormat(const std::string& path, const ChatContext& context) {
  if (!DirectoryExists(path)) {
    KVL_ASSIGN_OR_RETURN(const GgufFile file, OpenGgufModel(path));
    return LoadGgufChatFormat(file, context);
  }
  std::string place = path + "/chat_template.jinja";
  std::string text;
  if (FileExists(place)) {
    KVL_ASSIGN_OR_RETURN(text, ReadTextFile(place, kMaxTemplateBytes));
  } else {
    place = path + "/tokenizer_config.json";
    if (FileExists(place)) {
      auto found = ReadFromTokenizerConfig(place);
      if (!found.ok()) return InFile(place, found.status());
      text = *std::move(found);
    }
  }
  return Recognise(path, place, text, context);
}

}  // namespace kvlathe
