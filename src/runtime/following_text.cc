#include "runtime/following_text.h"

namespace kvlathe {

StatusOr<std::vector<int32_t>> TokenizeFollowing(const Tokenizer& tokenizer,
                                                 std::string_view prompt) {
  const auto bytes_of = [&](const std::vector<int32_t>& ids) {
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id, /*keep_special=*/true);
    return bytes;
  };
  if (prompt.starts_with(' ')) {
    KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                         tokenizer.TryTokenize(prompt.substr(1), /*add_bos=*/false));
    if (bytes_of(ids) == prompt) return ids;
  }
  return tokenizer.TryTokenize(prompt, /*add_bos=*/false);
}

}  // namespace kvlathe
