// The tokenizer.json of Hugging Face tokenizers is read as far as it describes byte-level or
// SentencePiece-style BPE. A construct outside that is kUnimplemented and named; a damaged file is
// kDataLoss.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {

// prefix_ids are those of the post-processor's template; bos_id and eos_id are left open.
StatusOr<TokenizerParts> ParseTokenizerJson(const nlohmann::json& file);

// The sections of the file.
StatusOr<Normalizer> ParseNormalizer(const nlohmann::json& section);
// Sets *byte_level if a ByteLevel step is among the steps.
StatusOr<PreTokenizer> ParsePreTokenizer(const nlohmann::json& section, bool* byte_level);
StatusOr<DecoderSpec> ParseDecoder(const nlohmann::json& section);

}  // namespace kvlathe
