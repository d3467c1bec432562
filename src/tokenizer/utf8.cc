#include "tokenizer/utf8.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstring>

namespace kvlathe {
namespace {

// Length of the sequence a lead byte announces and the range of its second byte (Unicode 15,
// table 3-7); length 0: not a lead byte.
struct Lead {
  int n_bytes;
  unsigned char second_min;
  unsigned char second_max;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char ReadUtf8(std::string_view text, size_t pos) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(pos);
  if (first < 0x80) return {Utf8Char::State::kWhole, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.n_bytes == 0) return {Utf8Char::State::kIllFormed, 1, 0};
  char32_t code = first & (0x7F >> lead.n_bytes);
  for (int i = 1; i < lead.n_bytes; ++i) {
    if (pos + i >= text.size()) return {Utf8Char::State::kIncomplete, i, 0};
    const unsigned char byte = at(pos + i);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Char::State::kIllFormed, i, 0};
    code = code << 6 | (byte & 0x3F);
  }
  return {Utf8Char::State::kWhole, lead.n_bytes, code};
}

size_t EndOfWellFormedRun(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    uint64_t eight;
    while (pos + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + pos, 8);
      if (eight & 0x8080808080808080ull) break;
      pos += 8;
    }
    if (pos == text.size()) break;
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    if (c.state != Utf8Char::State::kWhole) return pos;
    pos += c.n_bytes;
  }
  return pos;
}

size_t EndOfIllFormedRun(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const Utf8Char c = ReadUtf8(text, pos);
    if (c.state == Utf8Char::State::kWhole) break;
    pos += c.n_bytes;
  }
  return pos;
}

void AppendUtf8(char32_t code, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

bool IsUnicodeSpace(char32_t code) {
  if (code <= 0x20) return code == 0x20 || (code >= 0x09 && code <= 0x0D);
  if (code == 0x85) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return false;
  }
}

bool IsWordChar(char32_t code) {
  const auto is_in = [code](char32_t first, char32_t last) {
    return code >= first && code <= last;
  };
  // Join controls, and the enclosed letters that are symbols by category but alphabetic all the
  // same.
  if (is_in(0x200C, 0x200D) || is_in(0x24B6, 0x24E9) || is_in(0x1F130, 0x1F149) ||
      is_in(0x1F150, 0x1F169) || is_in(0x1F170, 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace kvlathe
