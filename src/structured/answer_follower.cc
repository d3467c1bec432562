#include "structured/answer_follower.h"

#include <algorithm>
#include <utility>

namespace kvlathe {

class AnswerFollower::Allowed {
 public:
  explicit Allowed(std::span<int32_t> words) : words_(words) {}

  bool Has(int32_t id) const { return (Word(id) >> (id % kWordBits) & 1) != 0; }
  void Drop(int32_t id) {
    const auto word = static_cast<size_t>(id / kWordBits);
    words_[word] = static_cast<int32_t>(Word(id) & ~(1u << (id % kWordBits)));
  }

 private:
  static constexpr int32_t kWordBits = 32;
  uint32_t Word(int32_t id) const {
    return static_cast<uint32_t>(words_[static_cast<size_t>(id / kWordBits)]);
  }

  std::span<int32_t> words_;
};

AnswerFollower::AnswerFollower(std::shared_ptr<const FollowedAnswer> answer,
                               std::shared_ptr<const TokenTexts> tokens)
    : answer_(std::move(answer)),
      tokens_(std::move(tokens)),
      walks_(std::shared_ptr<const FollowedSchema>(answer_, &answer_->schema)),
      is_in_thoughts_(!answer_->thoughts_end.empty()) {
  for (const std::string& front : answer_->fronts) {
    longest_front_ = std::max(longest_front_, front.size());
  }
  if (answer_->fronts.empty()) value_.emplace(&walks_, std::vector{answer_->schema.root(0)});
}

bool AnswerFollower::Takes(JsonFollower follower, const std::string& text) {
  return std::ranges::all_of(text,
                             [&](char byte) { return follower.Push(static_cast<uint8_t>(byte)); });
}

void AnswerFollower::KeepTaken(const std::vector<int32_t>& ids, Allowed* allowed) {
  for (const int32_t id : ids) {
    if (allowed->Has(id) && !Takes(*value_, tokens_->texts[static_cast<size_t>(id)])) {
      allowed->Drop(id);
    }
  }
}

void AnswerFollower::MarkPlain(const JsonFollower::RuledText& text, std::vector<bool>* taken) {
  const TextRule& rule = walks_.schema().rules()[static_cast<size_t>(text.rule)];
  const std::vector<int32_t>& plain = tokens_->plain;
  if (!rule.has_pattern() && text.position.n_left == 0) {
    const int64_t n_left = rule.most() - text.position.n_characters;
    std::vector<bool> is_broken(tokens_->texts.size(), false);
    for (const int32_t id : tokens_->broken) {
      is_broken[static_cast<size_t>(id)] = true;
      TextPosition position = text.position;
      const bool is_taken =
          std::ranges::all_of(tokens_->texts[static_cast<size_t>(id)], [&](char byte) {
            return walks_.TakesByte(text.rule, static_cast<uint8_t>(byte), &position);
          });
      if (is_taken) (*taken)[static_cast<size_t>(id)] = true;
    }
    for (const int32_t id : plain) {
      const auto at = static_cast<size_t>(id);
      if (!is_broken[at] && tokens_->n_characters[at] <= n_left) (*taken)[at] = true;
    }
    return;
  }
  // Tokens in the order of their bytes: what one shares with the one before is not walked again.
  std::vector<TextPosition> positions = {text.position};  // behind each byte
  for (size_t i = 0; i < plain.size(); ++i) {
    const std::string& bytes = tokens_->texts[static_cast<size_t>(plain[i])];
    const auto n_shared = static_cast<size_t>(tokens_->n_shared[i]);
    if (n_shared + 1 > positions.size()) continue;  // the shared bytes were not taken
    positions.resize(n_shared + 1);
    bool is_taken = true;
    for (size_t at = n_shared; at < bytes.size() && is_taken; ++at) {
      TextPosition next = positions.back();
      is_taken = walks_.TakesByte(text.rule, static_cast<uint8_t>(bytes[at]), &next);
      if (is_taken) positions.push_back(next);
    }
    if (is_taken) (*taken)[static_cast<size_t>(plain[i])] = true;
  }
}

void AnswerFollower::KeepPlain(const std::vector<JsonFollower::RuledText>& rules,
                               Allowed* allowed) {
  std::vector<bool> taken(tokens_->texts.size(), false);
  for (const JsonFollower::RuledText& text : rules) MarkPlain(text, &taken);
  for (const int32_t id : tokens_->plain) {
    if (!taken[static_cast<size_t>(id)]) allowed->Drop(id);
  }
}

void AnswerFollower::Restrict(std::span<int32_t> words) {
  Allowed allowed(words);
  if (!value_ || value_->is_done()) return;
  KeepTaken(tokens_->other, &allowed);
  if (value_->is_in_plain_text()) {
    const std::vector<JsonFollower::RuledText> rules = value_->RulesOfText();
    if (!rules.empty()) KeepPlain(rules, &allowed);
  } else {
    KeepTaken(tokens_->plain, &allowed);
  }
}

void AnswerFollower::PushOutside(char byte) {
  tail_ += byte;
  const size_t n_kept = std::max(longest_front_, answer_->thoughts_end.size());
  if (is_in_thoughts_) {
    is_in_thoughts_ = !tail_.ends_with(answer_->thoughts_end);
    if (!is_in_thoughts_) tail_.clear();
  } else {
    std::vector<int> values;
    size_t n_longest = 1;
    for (size_t i = 0; i < answer_->fronts.size(); ++i) {
      const std::string& front = answer_->fronts[i];
      if (front.size() < n_longest || !tail_.ends_with(front)) continue;
      if (front.size() > n_longest) values.clear();
      n_longest = front.size();
      values.push_back(answer_->schema.root(i));
    }
    if (!values.empty()) {
      value_.emplace(&walks_, values);
      tail_.clear();
    }
  }
  if (tail_.size() > 2 * n_kept) tail_.erase(0, tail_.size() - n_kept);
}

bool AnswerFollower::Accept(int32_t token) {
  if (token < 0 || token >= static_cast<int32_t>(tokens_->texts.size())) return true;
  for (const char byte : tokens_->texts[static_cast<size_t>(token)]) {
    if (!value_ || value_->is_done()) {
      if (!answer_->fronts.empty()) {
        value_.reset();
        PushOutside(byte);
      }
      continue;
    }
    if (value_->Push(static_cast<uint8_t>(byte))) continue;
    if (answer_->fronts.empty()) return false;
    value_.reset();  // text that looks like a call
  }
  if (value_) value_->ForgetPlaces();
  return true;
}

}  // namespace kvlathe
