// Each form in which a model directory ships its tokenizer has a loader. Errors name the file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tokenizer/files/model_settings.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// tokenizer.json.
StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& directory,
                                                       const ModelSettings& settings);

// tekken.json of Mistral's models.
StatusOr<std::unique_ptr<Tokenizer>> LoadTekken(const std::string& path,
                                                const ModelSettings& settings);

// vocab.json + merges.txt. `pre` names the pre-tokenizer; if empty, tokenizer_class or model_type
// tells it.
StatusOr<std::unique_ptr<Tokenizer>> LoadVocabAndMerges(const std::string& directory,
                                                        const ModelSettings& settings,
                                                        const std::string& pre);

// tokenizer.model of the SentencePiece library, already read.
StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                       std::string_view contents,
                                                       const ModelSettings& settings);

// tokenizer.model as tiktoken writes it ("base64 rank" lines; Llama 3's original download).
bool LooksLikeTiktoken(std::string_view contents);
StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                  std::string_view contents,
                                                  const ModelSettings& settings,
                                                  const std::string& pre);

}  // namespace kvlathe
