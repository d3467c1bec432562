#include "tokenizer/gguf/gguf_tokenizer.h"

#include <filesystem>

#include "tokenizer/files/bpe_files.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/files/rank_merges.h"
#include "tokenizer/gguf/gguf_sentencepiece.h"
#include "tokenizer/gguf/gguf_tokens.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kGemma4 = "gemma4";
constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";

std::string InKey(const GgufFile& file, std::string_view key) {
  return fmt::format("{}: {}", file.path(), key);
}

StatusOr<NamedPreTokenizer> ReadPreTokenizer(const GgufFile& file, const std::string& pre) {
  if (!pre.empty()) return FindPreTokenizer(pre);
  KVL_ASSIGN_OR_RETURN(std::string name, file.TextOr(kPreKey, ""));
  if (name.empty()) name = "default";
  StatusOr<NamedPreTokenizer> found = FindPreTokenizer(name);
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

// Kimi's files may leave the merges out, because its ids are their order.
Status ReadMerges(const GgufFile& file, const std::string& pre, TokenizerParts* parts) {
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string_view>* merges, file.Texts(kMergesKey));
  KVL_ASSIGN_OR_RETURN(const std::string named, file.TextOr(kPreKey, ""));
  if (merges == nullptr && (pre.empty() ? named : pre) == "kimi-k2") {
    parts->bpe.ignore_merges = true;
    AddRankMerges(parts->vocabulary, &parts->bpe.merges);
    return OkStatus();
  }
  if (merges == nullptr) return GgufKeyError(file, kMergesKey, "there are no merges");
  return InFile(InKey(file, kMergesKey), AddMerges(*merges, parts->vocabulary, &parts->bpe.merges));
}

// Characters with <0xNN> for what has no token, as Gemma 4 has them.
void SetCharacters(TokenizerParts* parts) {
  parts->byte_level = parts->decoder.byte_level = false;
  parts->bpe.byte_fallback = parts->decoder.byte_fallback = true;
  parts->bpe.whole_newlines = true;  // files may have no merges of newlines
  parts->decoder.replacements.push_back({"\u2581", " "});
}

// tokenizer.ggml.add_space_prefix has no meaning here, as in llama.cpp: a prefix would be part of
// the pre-tokenizer.
StatusOr<std::unique_ptr<Tokenizer>> LoadMerging(const GgufFile& file, const std::string& pre) {
  KVL_ASSIGN_OR_RETURN(NamedPreTokenizer pre_tokenizer, ReadPreTokenizer(file, pre));
  KVL_ASSIGN_OR_RETURN(const GgufTokens tokens, ReadGgufTokens(file, std::nullopt, std::nullopt));
  TokenizerParts parts;
  parts.byte_level = parts.decoder.byte_level = true;
  parts.normalizer = std::move(pre_tokenizer.normalizer);
  parts.pre_tokenizer = std::move(pre_tokenizer.pre_tokenizer);
  parts.bpe.ignore_merges = pre_tokenizer.ignore_merges;
  KVL_RETURN_IF_ERROR(AddTokens(file, tokens, &parts));
  KVL_RETURN_IF_ERROR(ReadMerges(file, pre, &parts));
  if (!pre_tokenizer.byte_level) SetCharacters(&parts);
  parts.bos_id = tokens.bos_id;
  parts.eos_id = tokens.eos_id;
  KVL_ASSIGN_OR_RETURN(bool adds_bos, file.BoolOr(kAddBosKey, pre_tokenizer.adds_bos));
  adds_bos |= pre == kGemma4;  // its files that say otherwise are wrong
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

// What a name that is not supported means, to tell it apart from one that is misspelt.
std::string_view KindOfModel(std::string_view model) {
  if (model == "bert") return " (WordPiece, of encoders)";
  if (model == "t5") return " (unigram, of encoders with decoders)";
  if (model == "rwkv") return " (RWKV's list of words)";
  if (model == "plamo2") return " (PLaMo 2's)";
  if (model == "whitespace" || model == "hybriddna") return " (of encoders)";
  return "";
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file,
                                                       const TokenizerOptions& options) {
  constexpr std::string_view kModelKey = "tokenizer.ggml.model";
  KVL_ASSIGN_OR_RETURN(const std::string model, file.TextOr(kModelKey, ""));
  if (model == "gpt2") return LoadMerging(file, options.pre);
  if (model == kGemma4) return LoadMerging(file, std::string(kGemma4));
  if (model == "llama") return LoadSentencePieceModel(file);
  if (model.empty()) return GgufKeyError(file, kModelKey, "the file has no tokenizer");
  if (model == "none" || model == "no_vocab") {
    return Error(StatusCode::kUnimplemented,
                 "{}: {}: the tokenizer \"{}\" is none; take a file that has its tokenizer",
                 file.path(), kModelKey, model);
  }
  return Error(StatusCode::kUnimplemented,
               "{}: {}: the tokenizer \"{}\"{} is not supported; supported are gpt2, gemma4 and "
               "llama",
               file.path(), kModelKey, model, KindOfModel(model));
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
