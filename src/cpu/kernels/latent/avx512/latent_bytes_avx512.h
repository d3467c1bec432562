// Keys from latents that are bytes (LatentBytes), by integer dots of bytes (VNNI).
#pragma once

#include <cstdint>

#include "cpu/kernels/latent/latent_keys.h"

namespace kvlathe {

// Fills the keys of a sealed block's tile. `scales` are those of its tokens, or null; `latents`
// gets kBlockSize bytes for each channel with codes, 64-byte aligned.
void ReadKeysOfBytes(const LatentBlock& b, const LatentBytes& bytes, const float* scales,
                     uint8_t* latents, uint16_t* keys);

}  // namespace kvlathe
