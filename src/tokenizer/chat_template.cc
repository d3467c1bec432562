#include "tokenizer/chat_template.h"

#include <fmt/ranges.h>

#include <ctime>
#include <vector>

#include "io/files.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/model_settings.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;

// The default of a list of templates: [{"name": "default", "template": "..."}, ...].
StatusOr<std::string> DefaultOfList(const nlohmann::json& list) {
  std::vector<std::string> names;
  for (const nlohmann::json& entry : list) {
    KVL_ASSIGN_OR_RETURN(const std::string name, StringField(entry, "name"));
    if (name == "default") return StringField(entry, "template");
    names.push_back(name);
  }
  return Error(StatusCode::kUnimplemented,
               "\"chat_template\" has no default among {}; --chat-template NAME forces one of {}",
               fmt::join(names, ", "), fmt::join(ChatFamilyNames(), ", "));
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

StatusOr<ChatFormat> LoadChatFormat(const std::string& directory, const ChatContext& context) {
  std::string path = directory + "/chat_template.jinja";
  std::string text;
  if (FileExists(path)) {
    KVL_ASSIGN_OR_RETURN(text, ReadTextFile(path, kMaxTemplateBytes));
  } else {
    path = directory + "/tokenizer_config.json";
    if (FileExists(path)) {
      auto found = ReadFromTokenizerConfig(path);
      if (!found.ok()) return InFile(path, found.status());
      text = *std::move(found);
    }
  }
  if (text.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: the model has no chat template; --chat-template NAME chooses one of {}",
                 directory, fmt::join(ChatFamilyNames(), ", "));
  }
  auto format = RecogniseChatTemplate(text, context);
  if (!format.ok()) return InFile(path, format.status());
  return format;
}

}  // namespace kvlathe
