// A tokenizer.model is used through the SentencePiece library (Kudo and Richardson 2018).
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/sentencepiece/sentencepiece_library.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_model.h"

namespace kvlathe {

class SentencePieceTokenizer : public Tokenizer {
 public:
  // kDataLoss if `serialized_model` is not a model the library accepts.
  static StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(std::string_view serialized_model,
                                                                  const ModelSettings& settings);
  StatusOr<std::vector<int32_t>> TryTokenizeMarked(std::string_view text, bool add_bos,
                                                   std::span<const TextRange> plain) const override;
  std::string TokenBytes(int32_t id, bool keep_special) const override;
  std::string Detokenize(std::span<const int32_t> ids, bool keep_special) const override;
  int64_t MinTokens(std::string_view text) const override;
  int vocab_size() const override { return vocabulary_.size(); }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  SentencePieceTokenizer() = default;
  Status IndexPieces(const ModelSettings& settings);
  void IndexCuts();
  void BoundTokenBytes();
  void ResolveBosAndEos(const ModelSettings& settings);
  const SentencePieceLibrary& MidTextLibrary() const;
  void AppendSegment(std::string_view segment, WordMemo* memo, std::vector<int32_t>* ids) const;
  void AppendText(std::string_view text, bool is_segment_start, WordMemo* memo,
                  std::vector<int32_t>* ids) const;
  // `follows` tells what stands before the word in the text.
  enum class Follows { kSpace, kOther };
  void AppendWord(std::string_view word, Follows follows, WordMemo* memo,
                  std::vector<int32_t>* ids) const;
  bool CanCutAtSpace(std::string_view text, size_t pos) const;
  bool CanCutAtNewline(std::string_view text, size_t pos) const;

  std::string serialized_model_;
  std::unique_ptr<SentencePieceLibrary> library_;
  // The same model without the space that it adds in front of a text, for what follows a newline or
  // ill-formed bytes; made when first needed.
  mutable std::once_flag mid_text_once_;
  mutable std::unique_ptr<SentencePieceLibrary> mid_text_library_;

  Vocabulary vocabulary_;
  AddedTokenMatcher matcher_;
  std::vector<std::string> bytes_of_id_;
  std::vector<bool> is_special_;
  std::array<int32_t, 256> id_of_byte_;
  bool adds_space_ = false;  // in front of each text
  // Whether a text may be cut at the single space after this byte, the last of a character.
  std::array<bool, 256> can_cut_after_{};
  // Whether a newline is always its byte token, so that a text may be cut there.
  bool newline_is_byte_ = false;
  size_t max_token_bytes_ = 1;
  // Bytes of which every one is in some token, unless a mark follows; where keeps_all_ is set, all
  // bytes are.
  std::array<bool, 256> is_kept_{};
  bool keeps_all_ = false;
  bool add_bos_ = false;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  mutable ScratchPool scratches_;
};

}  // namespace kvlathe
