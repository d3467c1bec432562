// Unicode regular expressions (PCRE2 with UTF, UCP and its JIT compiler) are compiled once and
// shared by threads; each thread brings its own RegexScratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tokenizer/splitting/regex_spelling.h"

namespace kvlathe {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  // kInvalidArgument with expression and place if one has given up since this was last asked.
  // Until then Find finds nothing.
  Status TakeFailure();
  bool failed() const;
  // How often an expression has been searched for with this scratch.
  int64_t n_searches() const { return n_searches_; }

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
  int64_t n_searches_ = 0;
};

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };
  // Longer expressions are refused; published ones stay below 4 KiB.
  static constexpr size_t kMaxPatternBytes = size_t{64} << 10;

  // kDataLoss with the reason if the pattern does not compile, kUnimplemented if it has something
  // that PCRE2 cannot do.
  static StatusOr<Regex> Compile(std::string_view pattern,
                                 RegexSyntax syntax = RegexSyntax::kOniguruma);
  // Matches exactly `text`.
  static StatusOr<Regex> CompileLiteral(std::string_view text);

  // The first match at or after `start` of well-formed UTF-8; it may be empty. An expression that
  // takes more than 10 million steps back on one match, as (a+)+$ can, gives up: the scratch then
  // has the error.
  bool Find(std::string_view text, size_t start, RegexScratch* scratch, Match* match) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// The matches of an expression from left to right, as the engines of tokenizers step through a
// text: an empty match right behind a match is none.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, std::string_view text, RegexScratch* scratch)
      : regex_(regex), text_(text), scratch_(scratch) {}
  bool Next(Regex::Match* match);

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexScratch* scratch_;
  size_t pos_ = 0;
  size_t last_end_ = std::string_view::npos;
};

}  // namespace kvlathe
