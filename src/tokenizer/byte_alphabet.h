// Byte-level BPE files write raw bytes in a printable alphabet (Radford et al. 2019, GPT-2): bytes
// that Latin-1 prints stand for themselves, the other 68 for U+0100 and up.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvlathe {

std::string BytesToAlphabet(std::string_view bytes);
// Nothing if a character lies outside the alphabet.
std::optional<std::string> AlphabetToBytes(std::string_view text);

}  // namespace kvlathe
