#include <algorithm>

#include "tokenizer/utf8.h"
#include "tokenizer/word_model.h"

namespace kvlathe {
namespace {

constexpr int32_t kNoId = -1;
constexpr char32_t kMetaspaceCode = 0x2581;

uint64_t PairKey(char32_t left, char32_t right) {
  return static_cast<uint64_t>(left) << 32 | right;
}

}  // namespace

CharBpe::CharBpe(BpeSpec spec, const Vocabulary* vocabulary)
    : spec_(std::move(spec)), vocabulary_(vocabulary) {
  id_of_byte_.fill(kNoId);
  if (spec_.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      id_of_byte_[byte] = vocabulary->Find(fmt::format("<0x{:02X}>", byte)).value_or(kNoId);
    }
  }
  IndexCharacters();
  IndexJoins();
}

int CharBpe::TableIndex(char32_t code) {
  if (code < 0x80) return static_cast<int>(code);
  return code == kMetaspaceCode ? kTableSize - 1 : -1;
}

void CharBpe::IndexCharacters() {
  for (int id = 0; id < vocabulary_->size(); ++id) {
    const std::string_view text = vocabulary_->TextOf(id);
    if (text.empty() || text.size() > 4) continue;
    const Utf8Char c = ReadUtf8(text, 0);
    if (c.state != Utf8Char::State::kWhole || static_cast<size_t>(c.n_bytes) != text.size())
      continue;
    id_of_char_.emplace(c.code, id);
  }
}

void CharBpe::IndexJoins() {
  // Merges of byte tokens join characters that no token spells; then nothing is cut.
  absl::flat_hash_set<int32_t> byte_ids(id_of_byte_.begin(), id_of_byte_.end());
  has_all_bytes_ = !byte_ids.contains(kNoId);
  byte_ids.erase(kNoId);
  can_cut_ = !spec_.merges.UsesAnyOf(byte_ids);
  if (!can_cut_) return;
  for (int id = 0; id < vocabulary_->size(); ++id) {
    const std::string_view text = vocabulary_->TextOf(id);
    char32_t previous = 0;
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = ReadUtf8(text, pos);
      if (pos > 0) {
        const int row = TableIndex(previous), column = TableIndex(c.code);
        if (row >= 0 && column >= 0) {
          joined_table_[row][column] = true;
        } else {
          joined_.insert(PairKey(previous, c.code));
        }
      }
      previous = c.code;
      pos += c.n_bytes;
    }
  }
}

bool CharBpe::IsJoined(char32_t left, char32_t right) const {
  const int row = TableIndex(left), column = TableIndex(right);
  if (row >= 0 && column >= 0) return joined_table_[row][column];
  return joined_.contains(PairKey(left, right));
}

bool CharBpe::CanCut(char32_t left, char32_t right) const {
  if (IsJoined(left, right)) return false;
  // A run of unknown characters may fuse into one token.
  return has_all_bytes_ || (id_of_char_.contains(left) && id_of_char_.contains(right));
}

void CharBpe::AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                           std::vector<int32_t>* ids) const {
  const bool may_be_whole =
      spec_.ignore_merges ||
      (spec_.whole_newlines && piece.find_first_not_of('\n') == std::string_view::npos);
  if (may_be_whole) {
    if (const std::optional<int32_t> whole = vocabulary_->Find(piece)) {
      ids->push_back(*whole);
      return;
    }
  }
  if (!can_cut_) return AppendWord(piece, scratch, ids);
  size_t word_begin = 0;
  char32_t previous = 0;
  bool previous_is_whole = false;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(piece, pos);
    const bool is_whole = c.state == Utf8Char::State::kWhole;
    // Next to ill-formed bytes nothing is known about the pair.
    if (pos > 0 && is_whole && previous_is_whole && CanCut(previous, c.code)) {
      AppendWord(piece.substr(word_begin, pos - word_begin), scratch, ids);
      word_begin = pos;
    }
    previous = c.code;
    previous_is_whole = is_whole;
    pos += c.n_bytes;
  }
  AppendWord(piece.substr(word_begin), scratch, ids);
}

void CharBpe::AppendWord(std::string_view word, TokenizeScratch* scratch,
                         std::vector<int32_t>* ids) const {
  if (word.empty() || scratch->memo.AppendKnown(word, ids)) return;
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  AppendSymbols(word, &symbols);
  spec_.merges.Apply(&symbols, &scratch->merge);
  scratch->memo.Remember(word, symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

bool CharBpe::AppendBytes(std::string_view bytes, std::vector<int32_t>* symbols) const {
  const bool has_all = std::all_of(bytes.begin(), bytes.end(), [&](char c) {
    return id_of_byte_[static_cast<unsigned char>(c)] != kNoId;
  });
  if (!has_all) return false;
  for (const char c : bytes) symbols->push_back(id_of_byte_[static_cast<unsigned char>(c)]);
  return true;
}

void CharBpe::AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const {
  bool previous_is_unk = false;
  for (size_t pos = 0; pos < word.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(word, pos);
    const std::string_view bytes = word.substr(pos, c.n_bytes);
    pos += c.n_bytes;
    const auto known =
        c.state == Utf8Char::State::kWhole ? id_of_char_.find(c.code) : id_of_char_.end();
    if (known != id_of_char_.end()) {
      symbols->push_back(known->second);
      previous_is_unk = false;
    } else if (AppendBytes(bytes, symbols)) {
      previous_is_unk = false;
    } else if (spec_.unk_id) {
      if (!previous_is_unk || !spec_.fuse_unk) symbols->push_back(*spec_.unk_id);
      previous_is_unk = true;
    }
  }
}

}  // namespace kvlathe
