// A Tokenizer makes token ids of text, and text of them, for every form in which models ship a
// tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/text_range.h"

namespace kvlathe {

struct TokenizerOptions {
  // Pre-tokenizer for vocab.json + merges.txt (which it prefers to a tokenizer.json beside them),
  // for tiktoken files and for byte-level BPE in GGUF files, by a name of
  // splitting/named_pre_tokenizer.h: gpt2, llama3 (implies ignore_merges), qwen2, falcon ... Empty:
  // from tokenizer_class or model_type, or from the GGUF file.
  std::string pre;
};

// Immutable once loaded; any number of threads may use one.
class Tokenizer {
 public:
  // From tokenizer.json, tekken.json, tokenizer.model (SentencePiece or tiktoken) or vocab.json +
  // merges.txt in a model directory, the first that is there, or from a GGUF file (gguf_tokenizer.h
  // has a loader for one that is open already). kNotFound: no such files; kUnimplemented: a
  // construct that is not supported, by name; kDataLoss: a damaged file; kInvalidArgument: an
  // unknown `pre`, or a file that is not GGUF.
  static StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path,
                                                   const TokenizerOptions& options = {});
  virtual ~Tokenizer() = default;

  // Token ids of `text`, byte for byte. Special tokens written in the text become their ids when
  // parse_special is set. add_bos prepends what the model's configuration asks for, but no second
  // BOS to a text that begins with one. kInvalidArgument with the expression and the place where a
  // regular expression of the tokenizer's file gives up on the text (splitting/regex.h); those of
  // published models never do.
  StatusOr<std::vector<int32_t>> TryTokenize(std::string_view text, bool add_bos,
                                             bool parse_special = true) const {
    const TextRange all = {0, text.size()};
    StatusOr<std::vector<int32_t>> ids = TryTokenizeMarked(
        text, add_bos, parse_special ? std::span<const TextRange>() : std::span(&all, 1));
    const bool has_two =
        ids.ok() && add_bos && ids->size() > 1 && (*ids)[0] == bos_id() && (*ids)[1] == bos_id();
    if (has_two) ids->erase(ids->begin());
    return ids;
  }
  // The same with special tokens, except where their text has bytes of `plain`, which are ascending
  // and do not overlap: there it is text like any other.
  virtual StatusOr<std::vector<int32_t>> TryTokenizeMarked(
      std::string_view text, bool add_bos, std::span<const TextRange> plain) const = 0;
  // The same for whoever has no use for an error: no ids at all in its place.
  std::vector<int32_t> Tokenize(std::string_view text, bool add_bos,
                                bool parse_special = true) const {
    return TryTokenize(text, add_bos, parse_special).value_or(std::vector<int32_t>());
  }
  std::vector<int32_t> TokenizeMarked(std::string_view text, bool add_bos,
                                      std::span<const TextRange> plain) const {
    return TryTokenizeMarked(text, add_bos, plain).value_or(std::vector<int32_t>());
  }
  // The bytes of one token as they appear inside a text (special tokens: empty unless
  // keep_special).
  virtual std::string TokenBytes(int32_t id, bool keep_special = false) const = 0;
  // The text of a whole sequence (the leading space that SentencePiece adds is removed).
  virtual std::string Detokenize(std::span<const int32_t> ids, bool keep_special = false) const = 0;

  // At least how many tokens `text` has, without tokenising it: by its bytes, and by the longest
  // token of the vocabulary. 0 where nothing is known, as where unknown characters vanish.
  virtual int64_t MinTokens(std::string_view text) const = 0;

  virtual int vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

struct DetokenizerOptions {
  // The tokens follow a text that is already there, so that the space in front of the first word is
  // part of what is streamed.
  bool continues_text = false;
  bool keeps_special = false;  // special tokens are their texts; otherwise they are left out
};

// Detokenises one token at a time and returns only whole UTF-8 characters; ill-formed bytes become
// U+FFFD.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer* tokenizer, const DetokenizerOptions& options = {})
      : tokenizer_(tokenizer),
        keeps_special_(options.keeps_special),
        at_start_(!options.continues_text) {}
  std::string Push(int32_t id);
  // What is left at the end; incomplete bytes become U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool keeps_special_;
  std::string pending_;  // the beginning of a character
  bool at_start_;
};

}  // namespace kvlathe
