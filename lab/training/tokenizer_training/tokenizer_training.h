// TrainTokenizer trains the tokenizer of a model of one's own: SentencePiece BPE (Sennrich et al.
// 2016, "Neural Machine Translation of Rare Words with Subword Units") as Llama 2 uses it, in the
// two forms that others read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace kvlathe {

struct TokenizerTrainingOptions {
  int vocab_size = 4096;               // 512 to 65536, special and byte tokens included
  bool split_digits = true;            // a digit is always a token of its own
  double character_coverage = 0.9999;  // of the text's characters; the rest are spelled in bytes
  int64_t max_text_bytes = int64_t{64} << 20;  // of longer texts, lines spread evenly are taken
  int threads = 2;                             // at least 1
};

// Trains on the text files (UTF-8; other bytes are passed over) and writes tokenizer.model,
// tokenizer.json and tokenizer_config.json into `directory`, which is made if it is not there. Each
// file appears only when it is complete. The same texts and options give the same bytes.
//
// The vocabulary: <unk> 0, <s> 1, </s> 2, the 256 byte tokens, learned pieces, single characters.
// Text is kept as it is (identity normalisation, no white space removed), so every text comes back
// from its tokens. A text gets one space in front, as Llama's do: the tokens of "a b" are those of
// "a" followed by those of "b". "\n" is one token and part of no other.
//
// kInvalidArgument: an option out of range, no text, or a text with too few or too many different
// pieces for vocab_size; kNotFound or kInternal: a file that cannot be read or written.
Status TrainTokenizer(std::span<const std::string> text_paths,
                      const TokenizerTrainingOptions& options, const std::string& directory);

// The contents of a Hugging Face tokenizer.json (model "BPE" with byte_fallback) that gives the
// same tokens as a SentencePiece model file. kDataLoss: not such a file; kUnimplemented, by name:
// what that form has no equal for (unigram models, normalisation rules, pieces matched as a whole).
StatusOr<std::string> TokenizerJsonOfSentencePiece(const std::string& model_path);

}  // namespace kvlathe
