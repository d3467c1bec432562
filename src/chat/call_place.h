// Where a call of known name and arguments stands in a rendered answer, and how it is written
// there.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "chat/reading/answer_format.h"

namespace kvlathe {

// Bytes of a text; none: begin is npos.
struct Span {
  size_t begin = std::string::npos, end = 0;
  bool found() const { return begin != std::string::npos; }
};

Span Find(std::string_view text, std::string_view part, size_t from);

// A call with the arguments {"city": city, "days": days}.
struct SentCall {
  std::string name;  // as it is printed
  std::string city;
  int days = 0;
};

struct CallPlace {
  Span object;  // of a call that is one object
  Span name, arguments;
  CallFormat format;  // what does not depend on a second call
};

// The first such call behind `from`. Nothing: it does not stand there in a way that is known.
std::optional<CallPlace> FindCallPlace(const std::string& text, size_t from, const SentCall& sent);

// How many of n bytes at the end of `text` begin no later than a mark <...> does: a mark that began
// in front of them is left out. Brackets of JSON are no marks here.
size_t WholeSuffix(std::string_view text, size_t n);
// How many of n bytes at the beginning of `text` end behind a mark and not within one.
size_t WholePrefix(std::string_view text, size_t n);

}  // namespace kvlathe
