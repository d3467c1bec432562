// Whatever an expression says, spelling and running it ends with matches in order or an error,
// soon.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tokenizer/splitting/regex.h"
#include "tokenizer/utf8.h"

namespace {

void CheckMatches(const kvlathe::Regex& regex, std::string_view text) {
  kvlathe::RegexScratch scratch;
  kvlathe::RegexMatches matches(regex, text, &scratch);
  kvlathe::Regex::Match match;
  size_t end = 0;
  while (matches.Next(&match)) {
    KVL_CHECK(match.begin >= end && match.end >= match.begin && match.end <= text.size());
    KVL_CHECK(kvlathe::EndOfWellFormedRun(text.substr(match.end), 0) == text.size() - match.end);
    end = match.end;
  }
  const bool failed = scratch.failed();
  KVL_CHECK(failed == !scratch.TakeFailure().ok());
}

}  // namespace

// An expression, a newline, and the text in which it is looked for (without one the expression).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  using namespace kvlathe;
  const std::string_view input(reinterpret_cast<const char*>(data), n_bytes);
  const std::string_view pattern = input.substr(0, input.find('\n'));
  std::string_view text = pattern.size() < n_bytes ? input.substr(pattern.size() + 1) : pattern;
  text = text.substr(0, EndOfWellFormedRun(text, 0));
  for (const RegexSyntax syntax : {RegexSyntax::kOniguruma, RegexSyntax::kRust}) {
    const auto regex = Regex::Compile(pattern, syntax);
    if (regex.ok()) CheckMatches(*regex, text);
  }
  return 0;
}
