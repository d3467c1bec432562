#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "io/files.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/gguf/gguf_tokenizer.h"
#include "tokenizer/loaders.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

bool HasVocabAndMerges(const std::string& directory) {
  return FileExists(directory + "/vocab.json") && FileExists(directory + "/merges.txt");
}

// tokenizer.json is derived from the other files of a directory. Where vocab.json and merges.txt
// are there to compare with, a plain word beyond their vocabulary that no file lists among the
// added tokens is a leftover of another model (ids that the model's embedding does not have).
void DropLeftovers(const std::string& directory, const ModelSettings& settings,
                   nlohmann::json* file) {
  if (!HasVocabAndMerges(directory) || !file->is_object() || !file->contains("added_tokens") ||
      !file->contains("model")) {
    return;
  }
  const nlohmann::json& model = (*file)["model"];
  nlohmann::json& added = (*file)["added_tokens"];
  if (!added.is_array() || !model.is_object() || !model.contains("vocab")) return;
  const nlohmann::json& vocab = model["vocab"];
  absl::flat_hash_set<std::string> listed;
  for (const AddedToken& token : settings.added_tokens) listed.insert(token.content);
  const auto is_leftover = [&](const nlohmann::json& entry) {
    if (!entry.is_object() || !entry.contains("content") || !entry["content"].is_string()) {
      return false;
    }
    const auto& content = entry["content"].get_ref<const std::string&>();
    return entry.value("special", nlohmann::json()) == false && !vocab.contains(content) &&
           !listed.contains(content);
  };
  added.erase(std::remove_if(added.begin(), added.end(), is_leftover), added.end());
}

// Llama's tokenizers add <s> unless told otherwise; others only if their template says so.
bool AddsBos(const ModelSettings& settings, const TokenizerParts& parts) {
  if (settings.add_bos_token) return *settings.add_bos_token;
  return settings.tokenizer_class.starts_with("LlamaTokenizer") || !parts.prefix_ids.empty();
}

StatusOr<TokenizerParts> ReadParts(const std::string& path, const std::string& directory,
                                   const ModelSettings& settings) {
  KVL_ASSIGN_OR_RETURN(nlohmann::json file, ReadJsonFile(path));
  DropLeftovers(directory, settings, &file);
  StatusOr<TokenizerParts> parts = ParseTokenizerJson(file);
  if (!parts.ok()) return InFile(path, parts.status());
  KVL_RETURN_IF_ERROR(
      InFile(directory + "/tokenizer_config.json",
             MergeAddedTokens(settings.added_tokens, &parts->vocabulary, &parts->added_tokens)));
  return parts;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& directory,
                                                       const ModelSettings& settings) {
  const std::string path = directory + "/tokenizer.json";
  KVL_ASSIGN_OR_RETURN(TokenizerParts parts, ReadParts(path, directory, settings));
  parts.bos_id = ResolveBos(settings, parts.vocabulary);
  parts.eos_id = ResolveEos(settings, parts.vocabulary);
  if (!parts.bos_id && !settings.has_no_bos && !parts.prefix_ids.empty()) {
    parts.bos_id = parts.prefix_ids.front();
  }
  if (!AddsBos(settings, parts)) {
    parts.prefix_ids.clear();
  } else if (parts.prefix_ids.empty() && parts.bos_id) {
    parts.prefix_ids = {*parts.bos_id};
  }
  return std::make_unique<TextTokenizer>(std::move(parts));
}

namespace {

StatusOr<std::unique_ptr<Tokenizer>> LoadFromDirectory(const std::string& directory,
                                                       const TokenizerOptions& options) {
  KVL_ASSIGN_OR_RETURN(const ModelSettings settings, ReadModelSettings(directory));
  // Naming a pre-tokenizer asks for the form that needs one.
  const bool prefers_vocab = !options.pre.empty() && HasVocabAndMerges(directory);
  if (!prefers_vocab && FileExists(directory + "/tokenizer.json")) {
    return LoadTokenizerJson(directory, settings);
  }
  const std::string tekken_path = directory + "/tekken.json";
  if (!prefers_vocab && FileExists(tekken_path)) return LoadTekken(tekken_path, settings);
  const std::string model_path = directory + "/tokenizer.model";
  if (!prefers_vocab && FileExists(model_path)) {
    KVL_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(model_path));
    if (LooksLikeTiktoken(contents)) {
      return LoadTiktoken(model_path, contents, settings, options.pre);
    }
    return LoadSentencePiece(model_path, contents, settings);
  }
  if (HasVocabAndMerges(directory)) return LoadVocabAndMerges(directory, settings, options.pre);
  return Error(
      StatusCode::kNotFound,
      "{}: no tokenizer; it needs tokenizer.json, tekken.json, tokenizer.model, or vocab.json "
      "and merges.txt",
      directory);
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path,
                                                     const TokenizerOptions& options) {
  if (!options.pre.empty()) {
    const Status known = FindPreTokenizer(options.pre).status();
    if (!known.ok()) return Error(StatusCode::kInvalidArgument, "{}", MessageOf(known));
  }
  if (DirectoryExists(path)) return LoadFromDirectory(path, options);
  KVL_ASSIGN_OR_RETURN(const GgufFile file, OpenGgufModel(path));
  return LoadGgufTokenizer(file, options);
}

}  // namespace kvlathe
