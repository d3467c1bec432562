#include "runtime/following_text.h"

namespace kvlathe {

std::vector<int32_t> TokenizeFollowing(const Tokenizer& tokenizer, std::string_view prompt) {
  const auto bytes_of = [&](const std::vector<int32_t>& ids) {
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id, /*keep_special=*/true);
    return bytes;
  };
  if (prompt.starts_with(' ')) {
    std::vector<int32_t> ids = tokenizer.Tokenize(prompt.substr(1), /*add_bos=*/false);
    if (bytes_of(ids) == prompt) return ids;
  }
  return tokenizer.Tokenize(prompt, /*add_bos=*/false);
}

}  // namespace kvlathe
