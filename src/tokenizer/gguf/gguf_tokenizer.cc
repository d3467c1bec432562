#include "tokenizer/gguf/gguf_tokenizer.h"

#include <filesystem>

#include "tokenizer/files/bpe_files.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/gguf/gguf_pre_tokenizer.h"
#include "tokenizer/gguf/gguf_sentencepiece.h"
#include "tokenizer/gguf/gguf_tokens.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";

std::string InKey(const GgufFile& file, std::string_view key) {
  return fmt::format("{}: {}", file.path(), key);
}

StatusOr<GgufPreTokenizer> ReadPreTokenizer(const GgufFile& file, const std::string& pre) {
  if (!pre.empty()) return FindGgufPreTokenizer(pre);
  KVL_ASSIGN_OR_RETURN(std::string name, file.TextOr(kPreKey, ""));
  if (name.empty()) name = "default";
  StatusOr<GgufPreTokenizer> found = FindGgufPreTokenizer(name);
  if (!found.ok()) return InFile(InKey(file, kPreKey), found.status());
  return found;
}

Status AddTokens(const GgufFile& file, const GgufTokens& tokens, TokenizerParts* parts) {
  parts->vocabulary.Reserve(tokens.texts.size());
  for (int id = 0; id < tokens.size(); ++id) {
    const std::string_view text = tokens.texts[id];
    // The ids are in order and in range, so that only the text can be taken.
    if (!parts->vocabulary.Add(id, text).ok()) {
      return GgufKeyError(file, kGgufTokensKey, "tokens {} and {} are equal",
                          parts->vocabulary.Find(text).value_or(id), id);
    }
    if (tokens.IsAdded(id)) parts->added_tokens.push_back(tokens.AddedTokenOf(id));
  }
  return OkStatus();
}

Status ReadMerges(const GgufFile& file, TokenizerParts* parts) {
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string_view>* merges, file.Texts(kMergesKey));
  if (merges == nullptr) return GgufKeyError(file, kMergesKey, "there are no merges");
  return InFile(InKey(file, kMergesKey), AddMerges(*merges, parts->vocabulary, &parts->bpe.merges));
}

// tokenizer.ggml.add_space_prefix has no meaning here, as in llama.cpp: a prefix would be part of
// the pre-tokenizer.
StatusOr<std::unique_ptr<Tokenizer>> LoadByteLevel(const GgufFile& file, const std::string& pre) {
  KVL_ASSIGN_OR_RETURN(GgufPreTokenizer pre_tokenizer, ReadPreTokenizer(file, pre));
  KVL_ASSIGN_OR_RETURN(const GgufTokens tokens, ReadGgufTokens(file, std::nullopt, std::nullopt));
  TokenizerParts parts;
  parts.byte_level = parts.decoder.byte_level = true;
  parts.normalizer = std::move(pre_tokenizer.normalizer);
  parts.pre_tokenizer = std::move(pre_tokenizer.pre_tokenizer);
  parts.bpe.ignore_merges = pre_tokenizer.ignore_merges;
  KVL_RETURN_IF_ERROR(AddTokens(file, tokens, &parts));
  KVL_RETURN_IF_ERROR(ReadMerges(file, &parts));
  parts.bos_id = tokens.bos_id;
  parts.eos_id = tokens.eos_id;
  KVL_ASSIGN_OR_RETURN(const bool adds_bos, file.BoolOr(kAddBosKey, pre_tokenizer.adds_bos));
  if (adds_bos && parts.bos_id) parts.prefix_ids = {*parts.bos_id};
  return std::make_unique<TextTokenizer>(std::move(parts));
}

StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceModel(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const GgufSentencePiece model, ReadGgufSentencePiece(file));
  ModelSettings settings;
  settings.added_tokens = model.added_tokens;
  settings.config_bos_id = model.tokens.bos_id;
  settings.config_eos_id = model.tokens.eos_id;
  settings.has_no_bos = !model.tokens.bos_id;
  settings.has_no_eos = !model.tokens.eos_id;
  KVL_ASSIGN_OR_RETURN(settings.add_bos_token, file.BoolOr(kAddBosKey, true));
  auto tokenizer = SentencePieceTokenizer::Create(model.serialized, settings);
  if (!tokenizer.ok()) return InFile(InKey(file, kGgufTokensKey), tokenizer.status());
  return *std::move(tokenizer);
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file,
                                                       const TokenizerOptions& options) {
  constexpr std::string_view kModelKey = "tokenizer.ggml.model";
  KVL_ASSIGN_OR_RETURN(const std::string model, file.TextOr(kModelKey, ""));
  if (model == "gpt2") return LoadByteLevel(file, options.pre);
  if (model == "llama") return LoadSentencePieceModel(file);
  if (model.empty()) return GgufKeyError(file, kModelKey, "the file has no tokenizer");
  return Error(StatusCode::kUnimplemented,
               "{}: {}: the tokenizer \"{}\" is not supported; supported are gpt2 and llama",
               file.path(), kModelKey, model);
}

StatusOr<GgufFile> OpenGgufModel(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Error(StatusCode::kNotFound, "{}: no such file or directory", path);
  }
  if (!LooksLikeGguf(path)) {
    return Error(StatusCode::kDataLoss,
                 "{}: not a GGUF file; give a Hugging Face model directory or a .gguf file", path);
  }
  return GgufFile::Open(path);
}

}  // namespace kvlathe
