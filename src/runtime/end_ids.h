// The tokens that end a text.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/workspace.h"

namespace kvlathe {

// What config.json or the GGUF metadata name, and the tokenizer's end of sequence.
std::vector<int32_t> EndIds(const Workspace& workspace);

}  // namespace kvlathe
