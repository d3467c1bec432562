// A WordMemo keeps the ids of words already tokenised. Text repeats its words: in English prose
// more than nineteen of twenty pieces are found here, which spares their merges. A TextMemo keeps
// those of whole texts between control tokens: a conversation that grew by a turn repeats all
// others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_map.h"

namespace kvlathe {

class WordMemo {
 public:
  // Longer pieces seldom come back.
  static constexpr size_t kMaxWordBytes = 64;

  // Appends the ids of `word` to `ids` and returns true if they are known.
  bool AppendKnown(std::string_view word, std::vector<int32_t>* ids) const {
    const auto entry = words_.find(word);
    if (entry == words_.end()) return false;
    const int32_t* begin = ids_.data() + entry->second.begin;
    ids->insert(ids->end(), begin, begin + entry->second.n_ids);
    return true;
  }

  void Remember(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxWordBytes) return;
    if (words_.size() >= kMaxWords) {
      words_.clear();
      ids_.clear();
    }
    words_.try_emplace(
        word, Entry{static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size())});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  // About 6 MiB with words of English length.
  static constexpr size_t kMaxWords = size_t{1} << 16;

  struct Entry {
    uint32_t begin;
    uint32_t n_ids;
  };
  TextMap<Entry> words_;
  std::vector<int32_t> ids_;
};

class TextMemo {
 public:
  // Shorter texts are quick to read again, longer ones are documents.
  static constexpr size_t kMinTextBytes = 24, kMaxTextBytes = size_t{64} << 10;

  static bool Takes(std::string_view text) {
    return text.size() >= kMinTextBytes && text.size() <= kMaxTextBytes;
  }

  bool AppendKnown(std::string_view text, std::vector<int32_t>* ids) const {
    const auto entry = texts_.find(text);
    if (entry == texts_.end()) return false;
    ids->insert(ids->end(), entry->second.begin(), entry->second.end());
    return true;
  }

  void Remember(std::string_view text, std::span<const int32_t> ids) {
    n_bytes_ += text.size() + ids.size_bytes();
    if (n_bytes_ > kMaxBytes) {
      texts_.clear();
      n_bytes_ = text.size() + ids.size_bytes();
    }
    texts_.try_emplace(text, ids.begin(), ids.end());
  }

 private:
  static constexpr size_t kMaxBytes = size_t{2} << 20;

  TextMap<std::vector<int32_t>> texts_;
  size_t n_bytes_ = 0;
};

}  // namespace kvlathe
