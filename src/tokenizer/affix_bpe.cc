#include <fmt/format.h>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_model.h"

namespace kvlathe {

void AffixBpe::AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                            std::vector<int32_t>* ids) const {
  if (piece.empty() || scratch->memo.AppendKnown(piece, ids)) return;
  std::string alphabet;
  std::string_view word = piece;
  if (byte_level_) word = alphabet = BytesToAlphabet(piece);
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  std::optional<int32_t> whole;
  if (spec_.ignore_merges) whole = vocabulary_->Find(word);
  if (whole) {
    symbols.push_back(*whole);
  } else {
    AppendSymbols(word, &symbols);
    spec_.merges.Apply(&symbols, &scratch->merge);
  }
  scratch->memo.Remember(piece, symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

// As Hugging Face has it, the bytes of affixes count where a symbol is none.
bool AffixBpe::AppendBytes(std::string_view symbol, std::vector<int32_t>* symbols) const {
  if (!spec_.byte_fallback) return false;
  std::vector<int32_t> bytes;
  for (const char c : symbol) {
    const auto id = vocabulary_->Find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
    if (!id) return false;
    bytes.push_back(*id);
  }
  symbols->insert(symbols->end(), bytes.begin(), bytes.end());
  return true;
}

void AffixBpe::AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const {
  bool previous_is_unk = false;
  for (size_t pos = 0; pos < word.size();) {
    const size_t end = pos + static_cast<size_t>(ReadAsciiOrUtf8(word, pos).n_bytes);
    std::string symbol = pos > 0 ? spec_.subword_prefix : "";
    symbol += word.substr(pos, end - pos);
    if (end == word.size()) symbol += spec_.word_suffix;
    pos = end;
    const std::optional<int32_t> id = vocabulary_->Find(symbol);
    const bool is_known = id || AppendBytes(symbol, symbols);
    if (id) symbols->push_back(*id);
    if (!is_known && spec_.unk_id && !(previous_is_unk && spec_.fuse_unk)) {
      symbols->push_back(*spec_.unk_id);
    }
    previous_is_unk = !is_known;
  }
}

}  // namespace kvlathe
