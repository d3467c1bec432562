#include "tokenizer/files/model_settings.h"

#include <charconv>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "io/files.h"
#include "tokenizer/files/json_fields.h"

namespace kvlathe {
namespace {

using nlohmann::json;

StatusOr<json> ReadObject(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(json object, ReadJsonFile(path));
  if (!object.is_object()) return Error(StatusCode::kDataLoss, "{}: not a JSON object", path);
  return object;
}

Status WrongType(const char* key, const char* wanted) {
  return Error(StatusCode::kDataLoss, "\"{}\" is not {}", key, wanted);
}

// "<s>" or {"content": "<s>", ...} or null.
Status ReadToken(const json& object, const char* key, std::optional<std::string>* token,
                 bool* is_null) {
  const auto value = object.find(key);
  if (value == object.end()) return OkStatus();
  if (value->is_null()) {
    *is_null = true;
    return OkStatus();
  }
  std::string text;
  if (value->is_object()) {
    KVL_ASSIGN_OR_RETURN(text, StringField(*value, "content"));
  } else {
    KVL_ASSIGN_OR_RETURN(text, StringField(object, key));
  }
  if (!text.empty() && !token->has_value()) *token = std::move(text);
  return OkStatus();
}

// 2 or [2, 32000] or null; ids that no vocabulary reaches are dropped.
void ReadId(const json& object, const char* key, std::optional<int32_t>* id) {
  const auto value = object.find(key);
  if (value == object.end() || id->has_value()) return;
  const json& number = value->is_array() && !value->empty() ? value->front() : *value;
  if (!number.is_number_integer()) return;
  const auto wide = number.get<int64_t>();
  if (wide >= 0 && wide < Vocabulary::kMaxTokens) *id = static_cast<int32_t>(wide);
}

StatusOr<int64_t> ParseId(const std::string& text) {
  int64_t id = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  if (error != std::errc() || stop != end) {
    return Error(StatusCode::kDataLoss, "\"added_tokens_decoder\" has the key \"{}\", not an id",
                 text);
  }
  return id;
}

Status ReadAddedTokensDecoder(const json& object, std::vector<AddedToken>* tokens) {
  const auto decoder = object.find("added_tokens_decoder");
  if (decoder == object.end() || decoder->is_null()) return OkStatus();
  if (!decoder->is_object()) return WrongType("added_tokens_decoder", "an object");
  for (const auto& [key, entry] : decoder->items()) {
    KVL_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry));
    KVL_ASSIGN_OR_RETURN(token.id, ParseId(key));
    tokens->push_back(std::move(token));
  }
  return OkStatus();
}

Status ReadTokenizerConfig(const json& object, ModelSettings* settings) {
  KVL_ASSIGN_OR_RETURN(settings->tokenizer_class, StringField(object, "tokenizer_class"));
  if (!FieldOrNull(object, "add_bos_token").is_null()) {
    KVL_ASSIGN_OR_RETURN(settings->add_bos_token, BoolField(object, "add_bos_token", false));
  }
  KVL_RETURN_IF_ERROR(ReadToken(object, "bos_token", &settings->bos_token, &settings->has_no_bos));
  KVL_RETURN_IF_ERROR(ReadToken(object, "eos_token", &settings->eos_token, &settings->has_no_eos));
  return ReadAddedTokensDecoder(object, &settings->added_tokens);
}

Status ReadSpecialTokensMap(const json& object, ModelSettings* settings) {
  bool ignored = false;
  KVL_RETURN_IF_ERROR(ReadToken(object, "bos_token", &settings->bos_token, &ignored));
  return ReadToken(object, "eos_token", &settings->eos_token, &ignored);
}

// {"<|im_start|>": 151644, ...}: tokens of older files, without flags.
Status ReadAddedTokensFile(const json& object, std::vector<AddedToken>* tokens) {
  absl::flat_hash_set<std::string> known;
  for (const AddedToken& token : *tokens) known.insert(token.content);
  for (const auto& [content, id] : object.items()) {
    if (!id.is_number_integer()) return WrongType(content.c_str(), "an id");
    if (known.contains(content)) continue;
    tokens->push_back({.id = id.get<int64_t>(), .content = content});
  }
  return OkStatus();
}

template <typename Reader>
Status ReadIfThere(const std::string& path, Reader reader) {
  if (!FileExists(path)) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const json object, ReadObject(path));
  return InFile(path, reader(object));
}

std::optional<int32_t> Resolve(const std::optional<std::string>& text, bool has_none,
                               std::optional<int32_t> config_id, const Vocabulary& vocabulary) {
  if (text) {
    if (const auto id = vocabulary.Find(*text)) return id;
  }
  if (has_none || !config_id || *config_id >= vocabulary.size()) return std::nullopt;
  return config_id;
}

}  // namespace

Status InFile(const std::string& path, const Status& status) {
  if (status.ok()) return status;
  return Error(status.code(), "{}: {}", path, MessageOf(status));
}

StatusOr<AddedToken> ParseAddedToken(const json& entry) {
  if (!entry.is_object()) return Error(StatusCode::kDataLoss, "an added token is not an object");
  AddedToken token;
  KVL_ASSIGN_OR_RETURN(token.content, StringField(entry, "content"));
  if (token.content.empty()) {
    return Error(StatusCode::kDataLoss, "an added token has no \"content\"");
  }
  KVL_ASSIGN_OR_RETURN(token.special, BoolField(entry, "special", false));
  KVL_ASSIGN_OR_RETURN(token.single_word, BoolField(entry, "single_word", false));
  KVL_ASSIGN_OR_RETURN(token.lstrip, BoolField(entry, "lstrip", false));
  KVL_ASSIGN_OR_RETURN(token.rstrip, BoolField(entry, "rstrip", false));
  KVL_ASSIGN_OR_RETURN(token.normalized, BoolField(entry, "normalized", !token.special));
  return token;
}

StatusOr<ModelSettings> ReadModelSettings(const std::string& directory) {
  ModelSettings settings;
  KVL_RETURN_IF_ERROR(ReadIfThere(directory + "/tokenizer_config.json", [&](const json& object) {
    return ReadTokenizerConfig(object, &settings);
  }));
  KVL_RETURN_IF_ERROR(ReadIfThere(directory + "/special_tokens_map.json", [&](const json& object) {
    return ReadSpecialTokensMap(object, &settings);
  }));
  KVL_RETURN_IF_ERROR(ReadIfThere(directory + "/added_tokens.json", [&](const json& object) {
    return ReadAddedTokensFile(object, &settings.added_tokens);
  }));
  KVL_RETURN_IF_ERROR(ReadIfThere(directory + "/generation_config.json", [&](const json& object) {
    ReadId(object, "bos_token_id", &settings.config_bos_id);
    ReadId(object, "eos_token_id", &settings.config_eos_id);
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(ReadIfThere(directory + "/config.json", [&](const json& object) {
    ReadId(object, "bos_token_id", &settings.config_bos_id);
    ReadId(object, "eos_token_id", &settings.config_eos_id);
    KVL_ASSIGN_OR_RETURN(settings.model_type, StringField(object, "model_type"));
    return OkStatus();
  }));
  return settings;
}

Status MergeAddedTokens(const std::vector<AddedToken>& more, Vocabulary* vocabulary,
                        std::vector<AddedToken>* added_tokens) {
  absl::flat_hash_map<int64_t, size_t> idx_of_id;
  for (size_t i = 0; i < added_tokens->size(); ++i) idx_of_id[(*added_tokens)[i].id] = i;
  for (const AddedToken& token : more) {
    KVL_RETURN_IF_ERROR(vocabulary->Add(token.id, token.content));
    const auto [known, inserted] = idx_of_id.try_emplace(token.id, added_tokens->size());
    if (inserted) {
      added_tokens->push_back(token);
    } else {
      (*added_tokens)[known->second] = token;
    }
  }
  return OkStatus();
}

std::optional<int32_t> ResolveBos(const ModelSettings& settings, const Vocabulary& vocabulary) {
  return Resolve(settings.bos_token, settings.has_no_bos, settings.config_bos_id, vocabulary);
}

std::optional<int32_t> ResolveEos(const ModelSettings& settings, const Vocabulary& vocabulary) {
  return Resolve(settings.eos_token, settings.has_no_eos, settings.config_eos_id, vocabulary);
}

}  // namespace kvlathe
