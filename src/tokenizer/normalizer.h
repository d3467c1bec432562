// A normalizer rewrites text before it is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
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

class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, PrependStep, ReplaceStep>;
  static constexpr size_t kMaxSteps = 32;

  // kUnimplemented beyond kMaxSteps, or where a text could become more than TextGrowth::kMaxFactor
  // times as long.
  Status AddStep(Step step);
  bool empty() const { return steps_.empty(); }

  // Ill-formed bytes pass unchanged.
  std::string Apply(std::string_view text) const;
  // At least how many bytes Apply(text) has; 0 where the steps may drop any of them.
  int64_t MinBytes(std::string_view text) const;

 private:
  std::vector<Step> steps_;
  TextGrowth growth_;
};

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace kvlathe
