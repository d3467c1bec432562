// The tokenizer of a GGUF file is written as the files of a Hugging Face directory.
#pragma once

#include <string>

#include "base/status.h"
#include "io/gguf/gguf.h"

namespace kvlathe {

// Writes tokenizer.json (byte-level BPE) or tokenizer.model (SentencePiece), and
// tokenizer_config.json with the chat template, to `directory`, which is there. What is loaded from
// it gives the ids that LoadGgufTokenizer's gives. kUnimplemented, naming it, for a pre-tokenizer
// whose tokens are characters; otherwise the errors of LoadGgufTokenizer.
Status WriteGgufTokenizer(const GgufFile& file, const std::string& directory);

}  // namespace kvlathe
