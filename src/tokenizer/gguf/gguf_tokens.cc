#include "tokenizer/gguf/gguf_tokens.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "tokenizer/text_map.h"
#include "tokenizer/vocabulary.h"

namespace kvlathe {
namespace {

// Texts that end a turn or a text in the chat formats of models. Some files call them normal or
// user-defined, where they would neither be parsed nor left out of an answer.
constexpr std::string_view kEnds[] = {"<|im_end|>",    "<|eot_id|>",
                                      "<|eom_id|>",    "<|end|>",
                                      "<|endoftext|>", "<|end_of_text|>",
                                      "<end_of_turn>", "<end_of_utterance>",
                                      "<|return|>",    "<|call|>",
                                      "<|calls|>",     "<|flush|>",
                                      "<EOT>",         "_<EOT>",
                                      "[EOT]",         "[EOS]",
                                      "<turn|>",       "<|tool_response>",
                                      "[e~[",          "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};

Status ReadTexts(const GgufFile& file, GgufTokens* tokens) {
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string_view>* texts, file.Texts(kGgufTokensKey));
  if (texts == nullptr || texts->empty()) {
    return GgufKeyError(file, kGgufTokensKey, "there are no tokens");
  }
  if (static_cast<int64_t>(texts->size()) > Vocabulary::kMaxTokens) {
    return GgufKeyError(file, kGgufTokensKey, "{} tokens, allowed are {}", texts->size(),
                        Vocabulary::kMaxTokens);
  }
  tokens->texts = *texts;
  for (size_t id = 0; id < texts->size(); ++id) {
    std::string_view& text = tokens->texts[id];
    if (!text.empty()) continue;
    tokens->names.push_front(fmt::format("[EMPTY_{}]", id));
    text = tokens->names.front();
  }
  return OkStatus();
}

Status ReadTypes(const GgufFile& file, GgufTokens* tokens) {
  tokens->types.assign(tokens->texts.size(), GgufTokenType::kNormal);
  KVL_ASSIGN_OR_RETURN(const std::vector<int64_t>* types, file.Integers(kGgufTypesKey));
  if (types == nullptr) return OkStatus();
  if (types->size() != tokens->texts.size()) {
    return GgufKeyError(file, kGgufTypesKey, "{} types for {} tokens", types->size(),
                        tokens->texts.size());
  }
  for (size_t id = 0; id < types->size(); ++id) {
    const int64_t type = (*types)[id];
    if (type < 0 || type > static_cast<int64_t>(GgufTokenType::kByte)) {
      return GgufKeyError(file, kGgufTypesKey, "token {} has type {}, there are 0 to 6", id, type);
    }
    tokens->types[id] = static_cast<GgufTokenType>(type);
  }
  return OkStatus();
}

void MakeEndsControl(GgufTokens* tokens) {
  for (int id = 0; id < tokens->size(); ++id) {
    const std::string_view text = tokens->texts[id];
    const bool may_be = text.front() == '<' || text.front() == '[' || text.front() == '_';
    if (may_be && std::ranges::find(kEnds, text) != std::end(kEnds)) {
      tokens->types[id] = GgufTokenType::kControl;
    }
  }
}

}  // namespace

bool GgufTokens::IsAdded(int id) const {
  return types[id] == GgufTokenType::kControl || types[id] == GgufTokenType::kUnknown ||
         types[id] == GgufTokenType::kUserDefined;
}

AddedToken GgufTokens::AddedTokenOf(int id) const {
  return {.id = id,
          .content = std::string(texts[id]),
          .normalized = false,
          .special = types[id] != GgufTokenType::kUserDefined};
}

StatusOr<std::optional<int32_t>> ReadGgufTokenId(const GgufFile& file, std::string_view key,
                                                 int n_tokens, std::optional<int32_t> fallback) {
  if (file.FindValue(key) == nullptr) {
    return fallback && *fallback < n_tokens ? fallback : std::nullopt;
  }
  KVL_ASSIGN_OR_RETURN(const int64_t id, file.IntegerOr(key, 0, 0, n_tokens - 1));
  return static_cast<int32_t>(id);
}

StatusOr<GgufTokens> ReadGgufTokens(const GgufFile& file, std::optional<int32_t> default_bos,
                                    std::optional<int32_t> default_eos) {
  GgufTokens tokens;
  KVL_RETURN_IF_ERROR(ReadTexts(file, &tokens));
  KVL_RETURN_IF_ERROR(ReadTypes(file, &tokens));
  MakeEndsControl(&tokens);
  const int n = tokens.size();
  KVL_ASSIGN_OR_RETURN(tokens.bos_id,
                       ReadGgufTokenId(file, "tokenizer.ggml.bos_token_id", n, default_bos));
  KVL_ASSIGN_OR_RETURN(tokens.eos_id,
                       ReadGgufTokenId(file, "tokenizer.ggml.eos_token_id", n, default_eos));
  KVL_ASSIGN_OR_RETURN(const auto eot_id,
                       ReadGgufTokenId(file, "tokenizer.ggml.eot_token_id", n, std::nullopt));
  // What ends a turn is no text either.
  if (eot_id) tokens.types[*eot_id] = GgufTokenType::kControl;
  return tokens;
}

}  // namespace kvlathe
