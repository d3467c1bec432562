// The metadata of a GGUF file are keys and values.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_cursor.h"

namespace kvlathe {

// Reads n_keys keys with their values at the cursor. Texts are views into the file. Memory is taken
// only for what the file has the bytes for.
Status ReadGgufMetadata(uint64_t n_keys, GgufCursor& cursor,
                        std::map<std::string_view, GgufValue>* metadata);

}  // namespace kvlathe
