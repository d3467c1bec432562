// Tokenizer and chat template come from the metadata of a GGUF file (keys tokenizer.*).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// For tokenizer.ggml.model "gpt2" and "gemma4" (BPE of bytes, or of characters where the
// pre-tokenizer says so) and "llama" (SentencePiece BPE); kUnimplemented
// for others and for pre-tokenizers that are not known, by name; kDataLoss with file and key for
// metadata that do not fit together. options.pre replaces the file's pre-tokenizer. The tokenizer
// does not need the file afterwards.
StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file,
                                                       const TokenizerOptions& options = {});

// The file at a path that is no directory. kNotFound if nothing is there, kDataLoss if it is not a
// GGUF file.
StatusOr<GgufFile> OpenGgufModel(const std::string& path);

}  // namespace kvlathe
