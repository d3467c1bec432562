// The token list of a GGUF file's metadata is checked: tokenizer.ggml.tokens and what goes with it.
#pragma once

#include <cstdint>
#include <forward_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "tokenizer/added_tokens.h"

namespace kvlathe {

inline constexpr std::string_view kGgufTokensKey = "tokenizer.ggml.tokens";
inline constexpr std::string_view kGgufTypesKey = "tokenizer.ggml.token_type";

// The numbers are those of tokenizer.ggml.token_type, and of SentencePiece's models from 1 on.
enum class GgufTokenType : uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufTokens {
  // None is empty and no two are equal. Views into the file or into `names`.
  std::vector<std::string_view> texts;
  std::vector<GgufTokenType> types;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::forward_list<std::string> names;  // of tokens that the file leaves empty

  int size() const { return static_cast<int>(texts.size()); }
  // Matched in the text as it is written. Control tokens and the unknown token are special;
  // user-defined ones are text.
  bool IsAdded(int id) const;
  AddedToken AddedTokenOf(int id) const;
};

// kDataLoss with file and key if the lists do not fit together or an id lies outside them. The
// default ids are for files that name none.
StatusOr<GgufTokens> ReadGgufTokens(const GgufFile& file, std::optional<int32_t> default_bos,
                                    std::optional<int32_t> default_eos);

// An id of the token list, or the fallback if the key is absent.
StatusOr<std::optional<int32_t>> ReadGgufTokenId(const GgufFile& file, std::string_view key,
                                                 int n_tokens, std::optional<int32_t> fallback);

// kDataLoss: what is wrong with a key's value.
template <typename... Args>
Status GgufKeyError(const GgufFile& file, std::string_view key, fmt::format_string<Args...> format,
                    Args&&... args) {
  return Error(StatusCode::kDataLoss, "{}: {}: {}", file.path(), key,
               fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvlathe
