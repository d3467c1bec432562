// Classes of the bytes of a text, whatever the locale is.
#pragma once

namespace kvlathe {

inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
inline bool IsLetterOrDigit(char c) { return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'z'); }
// Bytes of characters beyond ASCII are taken for letters.
inline bool IsPartOfWord(char c) {
  return IsLetterOrDigit(c) || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace kvlathe
