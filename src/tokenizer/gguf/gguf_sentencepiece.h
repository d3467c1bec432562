// The tokens and scores of a GGUF file become a SentencePiece model, so that the SentencePiece
// library can do the rest.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "tokenizer/gguf/gguf_tokens.h"

namespace kvlathe {

struct GgufSentencePiece {
  GgufTokens tokens;
  std::string serialized;  // a ModelProto
  // What is matched before the library sees the text: special tokens, and user-defined ones
  // without spaces.
  std::vector<AddedToken> added_tokens;
};

// kDataLoss with file and key if tokens, scores and types do not make a model.
StatusOr<GgufSentencePiece> ReadGgufSentencePiece(const GgufFile& file);

}  // namespace kvlathe
