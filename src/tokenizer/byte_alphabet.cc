#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr char32_t kFirstShifted = 0x100;
constexpr int kAlphabetEnd = 0x100 + 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<char32_t, 256> code_of_byte{};
  std::array<int16_t, kAlphabetEnd> byte_of_code{};  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte_of_code.fill(-1);
  char32_t next_shifted = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = StandsForItself(byte) ? static_cast<char32_t>(byte) : next_shifted++;
    alphabet.code_of_byte[byte] = code;
    alphabet.byte_of_code[code] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string BytesToAlphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    AppendUtf8(kAlphabet.code_of_byte[static_cast<unsigned char>(byte)], &text);
  }
  return text;
}

std::optional<std::string> AlphabetToBytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadUtf8(text, pos);
    if (c.state != Utf8Char::State::kWhole || c.code >= kAlphabetEnd) return std::nullopt;
    const int byte = kAlphabet.byte_of_code[c.code];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    pos += c.n_bytes;
  }
  return bytes;
}

}  // namespace kvlathe
