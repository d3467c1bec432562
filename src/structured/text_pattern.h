// A text pattern is the regular expression of a JSON schema, read into a tree: what of ECMAScript's
// expressions is regular, and no more.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct CodeRange {
  char32_t first = 0, last = 0;  // both of them in the range
};
// Ascending, and no two of them overlap or touch.
using CodeSet = std::vector<CodeRange>;

struct PatternNode {
  enum class Kind {
    kSet,       // one character of `set`
    kSequence,  // `parts` behind each other; none: nothing
    kChoice,    // one of `parts`
    kRepeat,    // parts[0], from `least` to `most` times
  };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSequence;
  CodeSet set;
  std::vector<PatternNode> parts;
  int least = 0, most = kUnbounded;
};

// The characters that `pattern` is a text of, from its first to its last: ^ and $ may stand at the
// ends and change nothing. Surrogates are no characters. kInvalidArgument: it is no expression, or
// has what is not regular or not known here (look-around, back references, \b, \p), by name.
StatusOr<PatternNode> ParsePattern(std::string_view pattern);

// A pattern in ASCII of the same texts, but those with characters that a JSON string would have to
// escape. Nothing: no text is left.
std::optional<std::string> WithoutEscapedCharacters(const PatternNode& node);

}  // namespace kvlathe
