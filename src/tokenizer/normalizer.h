// Rewriting of text before it is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvlathe {

// A Unicode normalisation form (UAX #15).
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Puts `prefix` before a text that is not empty.
struct PrependStep {
  std::string prefix;
};

// Replaces every occurrence of `pattern` (not empty), left to right.
struct ReplaceStep {
  std::string pattern;
  std::string content;
};

class Normalizer {
 public:
  void AddStep(UnicodeForm form) { steps_.emplace_back(form); }
  void AddStep(PrependStep step) { steps_.emplace_back(std::move(step)); }
  void AddStep(ReplaceStep step) { steps_.emplace_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Ill-formed bytes pass unchanged.
  std::string Apply(std::string_view text) const;

 private:
  using Step = std::variant<UnicodeForm, PrependStep, ReplaceStep>;
  std::vector<Step> steps_;
};

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace kvlathe
