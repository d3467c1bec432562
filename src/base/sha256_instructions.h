// SHA-256 with the instructions that many x86-64 processors have for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlathe {

// Whether this processor has them.
bool HasSha256Instructions();

// Adds whole blocks of 64 bytes to a state of 8 words. `constants` are the 64 of the rounds.
void AddSha256Blocks(const uint32_t* constants, const std::byte* bytes, size_t n_blocks,
                     uint32_t* state);

}  // namespace kvlathe
