// Pre-tokenizers have names: those that GGUF files have in tokenizer.ggml.pre.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/splitting/pre_tokenizer.h"

namespace kvlathe {

// What a name stands for besides the cutting of text.
struct NamedPreTokenizer {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  // The expressions whose matches and gaps are pieces, one after the other; none for "falcon",
  // whose steps see the bytes as letters.
  std::vector<std::string_view> patterns;
  bool composes = false;       // the normalizer is NFC
  bool byte_level = true;      // tokens are bytes; otherwise characters, with U+2581 for spaces
  bool ignore_merges = false;  // a piece that is a token is that token
  bool adds_bos = false;       // unless the file says otherwise
};

// The names are llama.cpp's; the steps are those of the tokenizers that the models publish.
// kUnimplemented for any other name, with those that are near.
StatusOr<NamedPreTokenizer> FindPreTokenizer(std::string_view name);

// All names.
std::vector<std::string> PreTokenizerNames();

}  // namespace kvlathe
