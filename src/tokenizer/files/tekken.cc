// tekken.json: ranked bytes as tiktoken has them, behind special tokens.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "io/files.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/rank_merges.h"
#include "tokenizer/loaders.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

using nlohmann::json;

// Files of versions 3 and 7 may leave their special tokens out; the place in this list is the id.
constexpr std::string_view kFirstSpecials[] = {"<unk>",
                                               "<s>",
                                               "</s>",
                                               "[INST]",
                                               "[/INST]",
                                               "[AVAILABLE_TOOLS]",
                                               "[/AVAILABLE_TOOLS]",
                                               "[TOOL_RESULTS]",
                                               "[/TOOL_RESULTS]",
                                               "[TOOL_CALLS]",
                                               "[IMG]",
                                               "<pad>",
                                               "[IMG_BREAK]",
                                               "[IMG_END]",
                                               "[PREFIX]",
                                               "[MIDDLE]",
                                               "[SUFFIX]",
                                               "[SYSTEM_PROMPT]",
                                               "[/SYSTEM_PROMPT]",
                                               "[TOOL_CONTENT]"};

struct TekkenConfig {
  std::string pattern;
  int64_t n_tokens = 0;    // with the special ones
  int64_t n_specials = 0;  // ids below
};

StatusOr<int64_t> Count(const json& object, const char* key, int64_t least, int64_t most) {
  const json& value = FieldOrNull(object, key);
  const bool is_count = value.is_number_integer() && value >= least && value <= most;
  if (is_count) return value.get<int64_t>();
  return Error(StatusCode::kDataLoss, "\"{}\" is {}, not a number from {} to {}", key, value.dump(),
               least, most);
}

StatusOr<TekkenConfig> ReadConfig(const json& file) {
  const json& config = FieldOrNull(file, "config");
  if (!config.is_object()) return Error(StatusCode::kDataLoss, "there is no \"config\" object");
  TekkenConfig result;
  KVL_ASSIGN_OR_RETURN(result.pattern, StringField(config, "pattern"));
  if (result.pattern.empty()) return Error(StatusCode::kDataLoss, "\"pattern\" is empty");
  KVL_ASSIGN_OR_RETURN(result.n_tokens,
                       Count(config, "default_vocab_size", 1, Vocabulary::kMaxTokens));
  KVL_ASSIGN_OR_RETURN(result.n_specials,
                       Count(config, "default_num_special_tokens", 0, result.n_tokens));
  return result;
}

AddedToken Special(int64_t id, std::string_view content) {
  return {.id = id, .content = std::string(content), .normalized = false, .special = true};
}

StatusOr<std::vector<AddedToken>> ListedSpecials(const json& list, const TekkenConfig& config) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) {
    for (const std::string_view text : kFirstSpecials) {
      if (std::ssize(tokens) < config.n_specials)
        tokens.push_back(Special(std::ssize(tokens), text));
    }
    return tokens;
  }
  if (!list.is_array()) return Error(StatusCode::kDataLoss, "\"special_tokens\" is not a list");
  for (const json& entry : list) {
    KVL_ASSIGN_OR_RETURN(const std::string text, StringField(entry, "token_str"));
    if (text.empty()) return Error(StatusCode::kDataLoss, "a special token has no \"token_str\"");
    const StatusOr<int64_t> id = Count(entry, "rank", 0, config.n_specials - 1);
    if (!id.ok()) {
      return Error(StatusCode::kDataLoss, "special token \"{}\": {}", text, MessageOf(id.status()));
    }
    tokens.push_back(Special(*id, text));
  }
  return tokens;
}

Status AddSpecials(const json& list, const TekkenConfig& config, TokenizerParts* parts) {
  KVL_ASSIGN_OR_RETURN(const std::vector<AddedToken> listed, ListedSpecials(list, config));
  KVL_RETURN_IF_ERROR(MergeAddedTokens(listed, &parts->vocabulary, &parts->added_tokens));
  std::vector<AddedToken> fillers;
  for (int64_t id = 0; id < config.n_specials; ++id) {
    if (!parts->vocabulary.Has(id)) fillers.push_back(Special(id, fmt::format("<SPECIAL_{}>", id)));
  }
  return MergeAddedTokens(fillers, &parts->vocabulary, &parts->added_tokens);
}

// A text of bytes may be the name of a special token, whose place in the vocabulary is taken.
Status AddBytes(const json& entry, int64_t rank, const TekkenConfig& config,
                TokenizerParts* parts) {
  KVL_ASSIGN_OR_RETURN(const std::string encoded, StringField(entry, "token_bytes"));
  std::string bytes;
  const bool is_base64 = absl::Base64Unescape(encoded, &bytes);
  if (!is_base64 || bytes.empty() || bytes.size() > kMaxRankedBytes) {
    return Error(StatusCode::kDataLoss, "token {}: \"token_bytes\" is not base64 of 1 to {} bytes",
                 rank, kMaxRankedBytes);
  }
  return parts->vocabulary.Add(rank + config.n_specials, BytesToAlphabet(bytes));
}

Status AddVocab(const json& vocab, const TekkenConfig& config, TokenizerParts* parts) {
  if (!vocab.is_array()) return Error(StatusCode::kDataLoss, "\"vocab\" is not a list");
  const int64_t n_ranks = config.n_tokens - config.n_specials;
  if (std::ssize(vocab) < n_ranks) {
    return Error(StatusCode::kDataLoss, "\"vocab\" has {} tokens, fewer than {}", vocab.size(),
                 n_ranks);
  }
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const json& entry = vocab[static_cast<size_t>(rank)];
    if (FieldOrNull(entry, "rank") != rank) {
      return Error(StatusCode::kDataLoss, "token {} of \"vocab\" has the rank {}", rank,
                   FieldOrNull(entry, "rank").dump());
    }
    KVL_RETURN_IF_ERROR(AddBytes(entry, rank, config, parts));
  }
  return OkStatus();
}

StatusOr<TokenizerParts> ParseTekken(const json& file) {
  TokenizerParts parts;
  parts.byte_level = parts.decoder.byte_level = true;
  parts.bpe.ignore_merges = true;
  KVL_ASSIGN_OR_RETURN(const TekkenConfig config, ReadConfig(file));
  KVL_ASSIGN_OR_RETURN(
      PreTokenizer::Step split,
      PatternSplit(config.pattern, SplitBehavior::kIsolated, /*invert=*/false, RegexSyntax::kRust));
  KVL_RETURN_IF_ERROR(parts.pre_tokenizer.AddStep(std::move(split)));
  KVL_RETURN_IF_ERROR(AddSpecials(FieldOrNull(file, "special_tokens"), config, &parts));
  KVL_RETURN_IF_ERROR(AddVocab(FieldOrNull(file, "vocab"), config, &parts));
  AddRankMerges(parts.vocabulary, &parts.bpe.merges);
  return parts;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadTekken(const std::string& path,
                                                const ModelSettings& settings) {
  KVL_ASSIGN_OR_RETURN(const json file, ReadJsonFile(path));
  StatusOr<TokenizerParts> parts = ParseTekken(file);
  if (!parts.ok()) return InFile(path, parts.status());
  parts->bos_id = parts->vocabulary.Find("<s>");
  parts->eos_id = parts->vocabulary.Find("</s>");
  if (settings.add_bos_token.value_or(true) && parts->bos_id) parts->prefix_ids = {*parts->bos_id};
  return std::make_unique<TextTokenizer>(*std::move(parts));
}

}  // namespace kvlathe
