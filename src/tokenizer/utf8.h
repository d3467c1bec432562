// UTF-8 is read one character at a time, with ill-formed input reported instead of refused: a
// tokenizer takes any bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlathe {

struct Utf8Char {
  enum class State {
    kWhole,
    kIncomplete,  // the text ends inside a character that is well-formed so far
    kIllFormed,
  };
  State state = State::kIllFormed;
  // The bytes of the character, or of the maximal ill-formed part (Unicode 15, section 3.9, U+FFFD
  // substitution of maximal subparts), at least 1.
  int n_bytes = 1;
  char32_t code = 0;  // kWhole only
};

// The character at text[pos]; pos < text.size().
Utf8Char ReadUtf8(std::string_view text, size_t pos);
// The code point of text[pos...] where the text is known to be well-formed.
inline Utf8Char ReadAsciiOrUtf8(std::string_view text, size_t pos) {
  const auto byte = static_cast<unsigned char>(text[pos]);
  if (byte < 0x80) return {Utf8Char::State::kWhole, 1, byte};
  return ReadUtf8(text, pos);
}

// The end of the well-formed run that starts at pos (pos itself if the byte there is ill-formed).
size_t EndOfWellFormedRun(std::string_view text, size_t pos);
// The end of the ill-formed run that starts at pos.
size_t EndOfIllFormedRun(std::string_view text, size_t pos);

void AppendUtf8(char32_t code, std::string* out);

// White_Space of the Unicode database.
bool IsUnicodeSpace(char32_t code);
// What \w matches by UTS #18: alphabetic characters, marks, decimal digits, connector punctuation
// and join controls.
bool IsWordChar(char32_t code);

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace kvlathe
