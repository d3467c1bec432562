#include "tokenizer/vocabulary.h"

namespace kvlathe {

void Vocabulary::Reserve(size_t n_tokens) {
  texts_.reserve(n_tokens);
  ids_.reserve(n_tokens);
}

Status Vocabulary::Add(int64_t id, std::string_view text) {
  if (id < 0 || id >= kMaxTokens) {
    return Error(StatusCode::kDataLoss, "token \"{}\" has id {}, allowed are 0 to {}", text, id,
                 kMaxTokens - 1);
  }
  const auto [entry, inserted] = ids_.try_emplace(text, static_cast<int32_t>(id));
  if (!inserted) {
    if (entry->second == id) return OkStatus();
    return Error(StatusCode::kDataLoss, "token \"{}\" has two ids, {} and {}", text, entry->second,
                 id);
  }
  if (Has(id)) {
    ids_.erase(entry);
    return Error(StatusCode::kDataLoss, "id {} belongs to two tokens, \"{}\" and \"{}\"", id,
                 TextOf(id), text);
  }
  if (id >= size()) texts_.resize(static_cast<size_t>(id) + 1);
  texts_[id] = std::string(text);
  return OkStatus();
}

std::optional<int32_t> Vocabulary::Find(std::string_view text) const {
  const auto entry = ids_.find(text);
  if (entry == ids_.end()) return std::nullopt;
  return entry->second;
}

bool Vocabulary::Has(int64_t id) const { return id >= 0 && id < size() && texts_[id].has_value(); }

std::string_view Vocabulary::TextOf(int64_t id) const {
  return Has(id) ? std::string_view(*texts_[id]) : std::string_view();
}

}  // namespace kvlathe
