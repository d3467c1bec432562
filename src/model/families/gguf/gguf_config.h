// The metadata of a GGUF file say of its model what a config.json would.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "io/gguf/gguf.h"
#include "model/config.h"

namespace kvlathe {

// Of the architectures that docs/models.md lists. kUnimplemented, by its name, for another one or
// for a feature that this build does not run; kDataLoss for numbers that cannot be. Where a file
// leaves a key out, llama.cpp's default holds.
StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);

// The same as the object that config.json of a Hugging Face directory would hold: what
// ReadGgufConfig parses.
StatusOr<nlohmann::json> GgufConfigJson(const GgufFile& file);

}  // namespace kvlathe
