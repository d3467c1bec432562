// A SentencePiece BPE model is written as the tokenizer.json of Hugging Face's tokenizers.
#pragma once

#include <string>

#include "base/status.h"
#include "training/tokenizer_training/sentencepiece_model.h"

namespace kvlathe {

// kUnimplemented, by name, for what has no equal in that form.
StatusOr<std::string> TokenizerJsonOf(const SentencePieceModel& model);

}  // namespace kvlathe
