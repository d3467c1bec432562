// Models, texts and settings have names here: equal content has an equal name on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "analysis/bases/basis.h"
#include "base/random.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "kv/quantizer/codebooks.h"

namespace kvlathe {

// 128 bits, not cryptographic: it guards against mistakes, not against forgery.
class Fingerprint {
 public:
  // Length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
  void Add(std::string_view bytes);
  void Add(uint64_t value);
  std::string Hex() const;  // 32 digits

 private:
  uint64_t high_ = 0x6b76'6c61'7468'6501ull;
  uint64_t low_ = 0x6b76'6c61'7468'6502ull;
};

// The text of config.json and, of every tensor in order of name: name, dtype, shape and three
// samples of 4 KiB (start, middle, end). It reads at most 12 KiB per tensor, so it costs
// milliseconds on any model; a change to a tensor that misses all three samples goes unnoticed.
std::string ModelHash(std::string_view config_text, const SafetensorsReader& weights);
std::string ModelHash(std::string_view config_text, const GgufFile& weights);

std::string TokenHash(std::span<const int32_t> token_ids);

// Ranks and maps of every head. It reads all of them: about 0.1 s for 32 layers of 32 heads.
std::string BasisHash(const ModelBasis& basis);

// Ranges and centroids of every layer.
std::string CodebooksHash(const ModelCodebooks& codebooks);

}  // namespace kvlathe
