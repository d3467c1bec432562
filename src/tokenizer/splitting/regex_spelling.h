// Regular expressions of tokenizer files are written for two engines. PCRE2 takes them once they
// are spelled as it wants them.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// Which engine an expression is written for: they differ in `$`, `.`, `\w`, `a{1,3}+` and more.
enum class RegexSyntax {
  kOniguruma,  // tokenizer.json (Hugging Face tokenizers)
  kRust,       // tiktoken and tekken.json (Rust's fancy-regex)
};

// What matches the same in PCRE2 (with UTF, UCP, no captures; under kOniguruma multi-line).
// kUnimplemented names a construct that has no such spelling, kDataLoss one that is not complete;
// other faults are left for PCRE2 to find.
StatusOr<std::string> SpellForPcre2(std::string_view pattern, RegexSyntax syntax);

}  // namespace kvlathe
