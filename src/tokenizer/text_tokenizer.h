// A tokenizer.json says how to tokenise by these parts: added tokens, normaliser, pre-tokenizer,
// BPE, decoder. Files in other forms that describe the same thing (vocab.json + merges.txt,
// tiktoken) use it too.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/splitting/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_model.h"

namespace kvlathe {

// How token texts become text again.
struct DecoderSpec {
  bool byte_level = false;     // texts are in the alphabet of byte_alphabet.h
  bool byte_fallback = false;  // <0xNN> is a byte
  std::vector<ReplaceStep> replacements;
  bool strips_leading_space = false;  // of the whole text
  bool strips_trailing_space = false;
};

// Everything a TextTokenizer is made of; filled by the loaders.
struct TokenizerParts {
  Vocabulary vocabulary;  // includes the added tokens
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeSpec bpe;
  bool byte_level = false;
  DecoderSpec decoder;
  std::vector<int32_t> prefix_ids;  // what add_bos puts first
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

class TextTokenizer : public Tokenizer {
 public:
  explicit TextTokenizer(TokenizerParts parts);

  StatusOr<std::vector<int32_t>> TryTokenizeMarked(std::string_view text, bool add_bos,
                                                   std::span<const TextRange> plain) const override;
  std::string TokenBytes(int32_t id, bool keep_special) const override;
  std::string Detokenize(std::span<const int32_t> ids, bool keep_special) const override;
  int64_t MinTokens(std::string_view text) const override;
  int vocab_size() const override { return parts_.vocabulary.size(); }
  std::optional<int32_t> bos_id() const override { return parts_.bos_id; }
  std::optional<int32_t> eos_id() const override { return parts_.eos_id; }

 private:
  void IndexBytes();
  void BoundTokenBytes();
  // `segment` lies between tokens that were matched in the raw text.
  void AppendSegment(std::string_view segment, bool is_text_start, std::span<const TextRange> plain,
                     TokenizeScratch* scratch, std::vector<int32_t>* ids) const;
  void AppendText(std::string_view text, bool is_text_start, TokenizeScratch* scratch,
                  std::vector<int32_t>* ids) const;

  TokenizerParts parts_;
  std::unique_ptr<WordModel> model_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  std::vector<std::string> bytes_of_id_;
  std::vector<bool> is_special_;
  // Of the normalised text, that one token covers at most; 0: there is no such bound.
  int64_t max_token_bytes_ = 0;
  std::array<bool, 256> may_vanish_{};  // bytes that no token has
  bool strips_spaces_ = false;          // an added token swallows white space beside it
  mutable ScratchPool scratches_;
};

// The byte that a <0xNN> token stands for.
std::optional<char> ByteOfToken(std::string_view text);

}  // namespace kvlathe
