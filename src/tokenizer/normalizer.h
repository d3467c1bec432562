// A normalizer rewrites text before it is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "tokenizer/splitting/regex.h"
#include "tokenizer/text_growth.h"

namespace kvlathe {

// A Unicode normalisation form (UAX #15).
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Puts `prefix` before a text that is not empty.
struct PrependStep {
  std::string prefix;
};

// Replaces every occurrence of `pattern` (1 to kMaxPatternBytes), left to right.
struct ReplaceStep {
  // Searching compares at most so many bytes at each position of a text.
  static constexpr size_t kMaxPatternBytes = 256;

  std::string pattern;
  std::string content;

  // How many times as long a text becomes at most.
  double growth() const {
    return static_cast<double>(content.size()) / static_cast<double>(pattern.size());
  }
};

// Replaces every match of an expression.
struct ReplaceMatchesStep {
  Regex regex;
  std::string content;
};

// Removes white space at the ends of a text.
struct StripStep {
  bool left = true;
  bool right = true;
};

// What changes one character at a time.
enum class CharacterStep {
  kLowercase,     // what Unicode maps to one lower case letter, and U+0130 to i with its dot
  kStripAccents,  // combining marks vanish
  kNmt,           // control characters vanish, other white space becomes a space
};

class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, PrependStep, ReplaceStep, ReplaceMatchesStep, StripStep,
                            CharacterStep>;
  static constexpr size_t kMaxSteps = 32;

  // kUnimplemented beyond kMaxSteps, or where a text could become more than TextGrowth::kMaxFactor
  // times as long.
  Status AddStep(Step step);
  bool empty() const { return steps_.empty(); }

  // Ill-formed bytes pass unchanged. An expression that gives up leaves the error in the scratch.
  std::string Apply(std::string_view text, RegexScratch* scratch) const;
  // At least how many bytes Apply(text) has; 0 where the steps may drop any of them.
  int64_t MinBytes(std::string_view text) const;

 private:
  std::vector<Step> steps_;
  TextGrowth growth_;
};

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace kvlathe
