// A word model turns one piece of text into ids: byte-level BPE (GPT-2, Llama 3, Qwen2, Falcon) or
// SentencePiece-style BPE over characters (Llama 2, Mistral, Phi-3).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "tokenizer/merges.h"
#include "tokenizer/splitting/regex.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_memo.h"

namespace kvlathe {

// What one running Tokenize call owns.
struct TokenizeScratch {
  WordMemo memo;
  TextMemo texts;
  MergeScratch merge;
  RegexScratch regex;
  std::vector<int32_t> symbols;
};

// Scratches not in use, so that memos outlive a call and calls in parallel never wait.
class ScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(ScratchPool* pool) : pool_(pool), scratch_(pool->Take()) {}
    ~Lease() { pool_->Return(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    TokenizeScratch* get() const { return scratch_.get(); }

   private:
    ScratchPool* pool_;
    std::unique_ptr<TokenizeScratch> scratch_;
  };

 private:
  std::unique_ptr<TokenizeScratch> Take();
  void Return(std::unique_ptr<TokenizeScratch> scratch);

  std::mutex mutex_;
  std::vector<std::unique_ptr<TokenizeScratch>> idle_;
};

// A vocabulary's merges in the order of their ranks, and how texts outside it are handled.
struct BpeSpec {
  MergeTable merges;
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges say
  bool whole_newlines = false;    // the same for pieces of newlines alone
  bool byte_fallback = false;     // characters without a token become their bytes' <0xNN> tokens
  bool fuse_unk = false;          // unknown characters in a row are one unknown token
  std::optional<int32_t> unk_id;  // without it, unknown text has no tokens
  std::string subword_prefix;     // of every character of a piece but the first: "##"
  std::string word_suffix;        // of a piece's last character: "</w>"

  bool has_affixes() const { return !subword_prefix.empty() || !word_suffix.empty(); }
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual void AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                            std::vector<int32_t>* ids) const = 0;
};

// Symbols are bytes, written in the vocabulary in the alphabet of byte_alphabet.h. The vocabulary
// must outlive the model.
class ByteBpe : public WordModel {
 public:
  ByteBpe(BpeSpec spec, const Vocabulary* vocabulary);
  void AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                    std::vector<int32_t>* ids) const override;

 private:
  BpeSpec spec_;
  const Vocabulary* vocabulary_;
  std::array<int32_t, 256> id_of_byte_;
};

// Symbols are characters. Without a pre-tokenizer the piece is the whole text; it is cut wherever
// no token joins the two characters, which changes no id (a merge cannot cross such a place) and
// gives words short enough to remember. The vocabulary must outlive the model.
class CharBpe : public WordModel {
 public:
  CharBpe(BpeSpec spec, const Vocabulary* vocabulary);
  void AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                    std::vector<int32_t>* ids) const override;

 private:
  // ASCII and U+2581, the characters that are worth a table.
  static constexpr int kTableSize = 129;
  static int TableIndex(char32_t code);

  void IndexCharacters();
  void IndexJoins();
  bool IsJoined(char32_t left, char32_t right) const;
  bool CanCut(char32_t left, char32_t right) const;
  void AppendWord(std::string_view word, TokenizeScratch* scratch, std::vector<int32_t>* ids) const;
  void AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const;
  bool AppendBytes(std::string_view bytes, std::vector<int32_t>* symbols) const;

  BpeSpec spec_;
  const Vocabulary* vocabulary_;
  absl::flat_hash_map<char32_t, int32_t> id_of_char_;
  std::array<int32_t, 256> id_of_byte_;  // <0xNN> tokens
  bool has_all_bytes_ = false;
  bool can_cut_ = false;
  // Pairs of characters that stand side by side in some token.
  std::array<std::array<bool, kTableSize>, kTableSize> joined_table_{};
  absl::flat_hash_set<uint64_t> joined_;
};

// Symbols are characters, written with a prefix inside a word or a suffix at its end; characters
// are letters of byte_alphabet.h where the model is byte-level. The vocabulary must outlive the
// model.
class AffixBpe : public WordModel {
 public:
  AffixBpe(BpeSpec spec, bool byte_level, const Vocabulary* vocabulary)
      : spec_(std::move(spec)), byte_level_(byte_level), vocabulary_(vocabulary) {}
  void AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                    std::vector<int32_t>* ids) const override;

 private:
  void AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const;
  bool AppendBytes(std::string_view symbol, std::vector<int32_t>* symbols) const;

  BpeSpec spec_;
  bool byte_level_;
  const Vocabulary* vocabulary_;
};

}  // namespace kvlathe
