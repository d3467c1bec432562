// GGUF files name one of these pre-tokenizers in tokenizer.ggml.pre.
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace kvlathe {

// What a name stands for besides the cutting of text.
struct GgufPreTokenizer {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;
  bool adds_bos = false;  // unless the file says otherwise
};

// The names are llama.cpp's; the steps are those of the tokenizers that the models publish.
// kUnimplemented for any other name, with those that are known.
StatusOr<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name);

}  // namespace kvlathe
