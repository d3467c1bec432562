// The files beside a tokenizer say more about it: tokenizer_config.json, config.json,
// generation_config.json, special_tokens_map.json, added_tokens.json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/vocabulary.h"

namespace kvlathe {

struct ModelSettings {
  std::string tokenizer_class;
  std::string model_type;
  std::optional<bool> add_bos_token;
  // The tokens as text. An explicit null in tokenizer_config.json means that there is none.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  bool has_no_bos = false;
  bool has_no_eos = false;
  // The tokens as ids, from config.json and generation_config.json; of a list the first.
  std::optional<int32_t> config_bos_id;
  std::optional<int32_t> config_eos_id;
  std::vector<AddedToken> added_tokens;
};

// Files that are absent say nothing; malformed ones are kDataLoss.
StatusOr<ModelSettings> ReadModelSettings(const std::string& directory);

// An entry of `added_tokens` or `added_tokens_decoder`: its text and flags, without the id.
StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& entry);

// Adds the tokens to the vocabulary and the list; flags given later win for the same token.
Status MergeAddedTokens(const std::vector<AddedToken>& more, Vocabulary* vocabulary,
                        std::vector<AddedToken>* added_tokens);

// The id of the text token if it has one, else the configured id if the vocabulary reaches it.
std::optional<int32_t> ResolveBos(const ModelSettings& settings, const Vocabulary& vocabulary);
std::optional<int32_t> ResolveEos(const ModelSettings& settings, const Vocabulary& vocabulary);

// `status` with the file it is about in front.
Status InFile(const std::string& path, const Status& status);

}  // namespace kvlathe
