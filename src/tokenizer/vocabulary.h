// A vocabulary has token texts by id and ids by text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/text_map.h"

namespace kvlathe {

class Vocabulary {
 public:
  // Far above any published vocabulary; bounds what a hostile file makes us allocate.
  static constexpr int64_t kMaxTokens = int64_t{1} << 21;

  void Reserve(size_t n_tokens);
  // kDataLoss if the id is out of range or taken by another text, or the text has another id.
  // Adding the same pair again changes nothing.
  Status Add(int64_t id, std::string_view text);

  std::optional<int32_t> Find(std::string_view text) const;
  bool Has(int64_t id) const;
  // Empty for an id without a token.
  std::string_view TextOf(int64_t id) const;
  // The largest id + 1.
  int size() const { return static_cast<int>(texts_.size()); }

 private:
  std::vector<std::optional<std::string>> texts_;
  TextMap<int32_t> ids_;
};

}  // namespace kvlathe
