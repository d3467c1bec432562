#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

// The character that ends at `end`; kIllFormed if those bytes are none.
Utf8Char CharBefore(std::string_view text, size_t end) {
  for (size_t n_bytes = 1; n_bytes <= std::min<size_t>(4, end); ++n_bytes) {
    const Utf8Char c = ReadUtf8(text.substr(0, end), end - n_bytes);
    if (c.state == Utf8Char::State::kWhole && static_cast<size_t>(c.n_bytes) == n_bytes) return c;
  }
  return {};
}

bool IsWhole(const Utf8Char& c) { return c.state == Utf8Char::State::kWhole; }

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const Utf8Char before = CharBefore(text, begin);
    if (IsWhole(before) && IsWordChar(before.code)) return true;
  }
  if (end < text.size()) {
    const Utf8Char after = ReadUtf8(text, end);
    if (IsWhole(after) && IsWordChar(after.code)) return true;
  }
  return false;
}

size_t SpacesBegin(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const Utf8Char c = CharBefore(text, end);
    if (!IsWhole(c) || !IsUnicodeSpace(c.code)) break;
    end -= c.n_bytes;
  }
  return std::max(end, limit);
}

size_t SpacesEnd(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Char c = ReadUtf8(text, begin);
    if (!IsWhole(c) || !IsUnicodeSpace(c.code)) break;
    begin += c.n_bytes;
  }
  return begin;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  starts_pattern_[static_cast<unsigned char>(pattern[0])] = true;
  int32_t node = 0;
  for (const char byte : pattern) {
    const auto [edge, inserted] =
        edges_.try_emplace(EdgeKey(node, static_cast<unsigned char>(byte)),
                           static_cast<int32_t>(token_at_node_.size()));
    if (inserted) token_at_node_.push_back(kNone);
    node = edge->second;
  }
  // Two tokens can normalise to one pattern; the first keeps it.
  if (token_at_node_[node] != kNone) return;
  token_at_node_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

bool AddedTokenMatcher::swallows_spaces() const {
  return std::ranges::any_of(tokens_,
                             [](const AddedToken& token) { return token.lstrip || token.rstrip; });
}

std::optional<AddedTokenMatcher::Found> AddedTokenMatcher::LongestAt(std::string_view text,
                                                                     size_t begin) const {
  std::optional<Found> longest;
  int32_t node = 0;
  for (size_t pos = begin; pos < text.size(); ++pos) {
    const auto edge = edges_.find(EdgeKey(node, static_cast<unsigned char>(text[pos])));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_node_[node] != kNone) longest = Found{token_at_node_[node], pos + 1};
  }
  return longest;
}

int64_t CountSpaceBytes(std::string_view text) {
  int64_t n_bytes = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    if (IsWhole(c) && IsUnicodeSpace(c.code)) n_bytes += c.n_bytes;
    pos += c.n_bytes;
  }
  return n_bytes;
}

std::vector<TextRange> RangesWithin(std::span<const TextRange> ranges, size_t begin, size_t end) {
  std::vector<TextRange> within;
  const auto first = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
  for (auto it = first; it != ranges.end() && it->begin < end; ++it) {
    within.push_back({std::max(it->begin, begin) - begin, std::min(it->end, end) - begin});
  }
  return within;
}

void AddedTokenMatcher::Split(std::string_view text, std::span<const TextRange> plain,
                              Sink sink) const {
  size_t emitted_end = 0;
  size_t plain_idx = 0;  // the first range that does not end in front of the match
  for (size_t pos = 0; !tokens_.empty() && pos < text.size();) {
    if (!starts_pattern_[static_cast<unsigned char>(text[pos])]) {
      ++pos;
      continue;
    }
    const std::optional<Found> found = LongestAt(text, pos);
    if (!found) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[found->token_idx];
    size_t begin = pos, end = found->end;
    // A match that is turned down is passed over whole, as in Hugging Face tokenizers.
    pos = end;
    if (token.special) {
      while (plain_idx < plain.size() && plain[plain_idx].end <= begin) ++plain_idx;
      if (plain_idx < plain.size() && plain[plain_idx].begin < end) {
        // What begins in a plain range and ends outside may hide a token that begins behind it.
        if (plain[plain_idx].end < end) pos = begin + 1;
        continue;
      }
    }
    if (token.single_word && TouchesWord(text, begin, end)) continue;
    // The token may start with space that the token before it has swallowed.
    begin = std::max(begin, emitted_end);
    if (token.lstrip) begin = SpacesBegin(text, begin, emitted_end);
    if (token.rstrip) end = SpacesEnd(text, end);
    end = std::max(end, emitted_end);
    if (begin > emitted_end) sink(std::nullopt, emitted_end, begin);
    sink(static_cast<int32_t>(token.id), begin, end);
    emitted_end = end;
  }
  if (emitted_end < text.size()) sink(std::nullopt, emitted_end, text.size());
}

}  // namespace kvlathe
