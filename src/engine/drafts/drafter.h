// A drafter guesses how a text goes on. The model checks several guesses in one step, so that a
// text which repeats itself takes fewer of them (docs/engine.md, Drafts).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// The most guesses of a sequence in one step.
inline constexpr int kMostDrafted = 32;

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Up to n_most guesses of the tokens behind `tokens`, which are all that is known of a sequence
  // and begin with those of the call before; the first n_given of them were not generated. Any
  // token of the vocabulary may be guessed: a wrong guess costs time and changes nothing.
  virtual std::vector<int32_t> Propose(std::span<const int32_t> tokens, int64_t n_given,
                                       int n_most) = 0;
};

// What `--draft` says, as vLLM's speculative method "ngram" has it.
struct DraftOptions {
  static constexpr int kLongestMatch = 16;

  int n_tokens = 8;   // guesses of a step, at most; 1 to kMostDrafted
  int min_match = 2;  // tokens that the end of the text has in common with an earlier place, at
  int max_match = 4;  // least, and those that are looked for; 1 to kLongestMatch

  // "ngram", or with some of the options "ngram:tokens=8,min=2,max=4"; "none" is no drafts.
  // kInvalidArgument with what may be written.
  static StatusOr<std::optional<DraftOptions>> Parse(std::string_view text);

  friend bool operator==(const DraftOptions&, const DraftOptions&) = default;
};

// A drafter of one sequence, null without options.
std::shared_ptr<Drafter> MakeDrafter(const std::optional<DraftOptions>& options);

}  // namespace kvlathe
