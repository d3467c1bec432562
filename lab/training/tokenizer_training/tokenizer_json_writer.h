// tokenizer.json of Hugging Face's tokenizers from a SentencePiece BPE model.
#pragma once

#include <string>

#include "base/status.h"
#include "training/tokenizer_training/sentencepiece_model.h"

namespace kvlathe {

// kUnimplemented, by name, for what has no equal in that form.
StatusOr<std::string> TokenizerJsonOf(const SentencePieceModel& model);

}  // namespace kvlathe
