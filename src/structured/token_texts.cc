#include "structured/token_texts.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace kvlathe {

TokenTexts::TokenTexts(std::vector<std::string> tokens) : texts(std::move(tokens)) {
  n_characters.assign(texts.size(), 0);
  for (size_t id = 0; id < texts.size(); ++id) {
    const std::string& text = texts[id];
    if (text.empty()) continue;
    n_characters[id] = static_cast<int32_t>(std::ranges::count_if(
        text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    const bool is_plain = std::ranges::none_of(
        text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
    if (is_plain) {
      plain.push_back(static_cast<int32_t>(id));
      if (EndOfWellFormedRun(text, 0) < text.size()) broken.push_back(static_cast<int32_t>(id));
      continue;
    }
    other.push_back(static_cast<int32_t>(id));
  }
  std::ranges::sort(plain, [&](int32_t a, int32_t b) {
    return texts[static_cast<size_t>(a)] < texts[static_cast<size_t>(b)];
  });
  n_shared.assign(plain.size(), 0);
  for (size_t i = 1; i < plain.size(); ++i) {
    const std::string& before = texts[static_cast<size_t>(plain[i - 1])];
    const std::string& text = texts[static_cast<size_t>(plain[i])];
    const auto [at, rest] = std::ranges::mismatch(before, text);
    n_shared[i] = static_cast<int32_t>(at - before.begin());
  }
}

}  // namespace kvlathe
