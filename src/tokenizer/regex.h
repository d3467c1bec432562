// Unicode regular expressions (PCRE2 with UTF, UCP and its JIT compiler) are compiled once and
// shared by threads; each thread brings its own RegexScratch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  // kDataLoss with the reason if the pattern does not compile.
  static StatusOr<Regex> Compile(std::string_view pattern);
  // Matches exactly `text`.
  static StatusOr<Regex> CompileLiteral(std::string_view text);

  // The first non-empty match at or after `start` of well-formed UTF-8. A pattern that exhausts the
  // matcher's limits counts as no match.
  bool Find(std::string_view text, size_t start, RegexScratch* scratch, Match* match) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace kvlathe
