// The metadata of a GGUF file are keys and values.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "io/gguf/gguf_cursor.h"
#include "io/gguf/gguf_header.h"

namespace kvlathe {

// Reads n_keys keys with their values at the cursor into `metadata` and `stored_values`. Texts are
// views into the file. Memory is taken only for what the file has the bytes for.
Status ReadGgufMetadata(uint64_t n_keys, GgufCursor& cursor, GgufHeader* header);

}  // namespace kvlathe
