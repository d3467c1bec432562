// A pre-tokenizer cuts text into the pieces that byte-pair merges never cross.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "tokenizer/splitting/regex.h"
#include "tokenizer/text_growth.h"

namespace kvlathe {

// What happens to the matches of a splitting pattern (Hugging Face's names).
enum class SplitBehavior {
  kRemoved,             // matches vanish
  kIsolated,            // each match is a piece
  kContiguous,          // touching matches are one piece
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match starts the piece after it
};

struct SplitStep {
  Regex regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches and gaps change places
};

// Cuts numbers into groups of three digits, counted from their end. Expressions that look ahead to
// the end of a number for this take a time that grows with the square of its length.
struct DigitGroupStep {
  enum class Kind {
    kNumbers,  // each group of \p{N} is a piece
    kWords,    // the same with \p{Nd}, where no letter follows the number
    kCuts,     // a cut before each whole group of \p{Nd}; what stands before the first stays on
  };
  Kind kind = Kind::kNumbers;
};

// Puts a space before a piece that does not start with one.
struct PrefixSpaceStep {};

// Writes the piece's bytes in the alphabet of byte_alphabet.h for the steps that follow.
struct ByteAlphabetStep {};

// Writes spaces as `replacement` and puts one before the text.
struct MetaspaceStep {
  enum class Prepend { kNever, kFirst, kAlways };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;  // kFirst: only at the start of the whole text
};

class PreTokenizer {
 public:
  using PieceSink = absl::FunctionRef<void(std::string_view)>;
  using Step =
      std::variant<SplitStep, DigitGroupStep, PrefixSpaceStep, ByteAlphabetStep, MetaspaceStep>;

  // Bounds the recursion over steps that a hostile file can ask for.
  static constexpr size_t kMaxSteps = 32;

  // kUnimplemented beyond kMaxSteps, or where a text could become more than TextGrowth::kMaxFactor
  // times as long.
  Status AddStep(Step step);

  // Calls `sink` with each piece of `text` in order; pieces are bytes of the text (or of its
  // rewriting by the steps) and live only during the call. Each ill-formed run of bytes is a piece
  // of its own.
  void Split(std::string_view text, bool is_text_start, RegexScratch* scratch,
             PieceSink sink) const;
  // Whether some of the text may be in no piece.
  bool drops_text() const { return drops_text_; }

 private:
  struct Context {
    RegexScratch* scratch;
    PieceSink sink;
    bool is_text_start;
  };
  void RunFrom(size_t step_idx, std::string_view piece, const Context& context) const;

  std::vector<Step> steps_;
  TextGrowth growth_;
  bool ends_in_byte_alphabet_ = false;
  bool drops_text_ = false;
};

// The expression of GPT-2, which Hugging Face's ByteLevel has too.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The steps of Hugging Face's Split with a pattern. Some expressions are known, and something equal
// does their work in a time that grows with the text.
StatusOr<PreTokenizer::Step> PatternSplit(std::string_view pattern, SplitBehavior behavior,
                                          bool invert, RegexSyntax syntax);
// The matches of `pattern` and the gaps between them are pieces.
StatusOr<PreTokenizer::Step> IsolatedSplit(std::string_view pattern);
// The steps of Hugging Face's ByteLevel with its expression, Digits and Punctuation.
StatusOr<PreTokenizer::Step> Gpt2Split();
StatusOr<PreTokenizer::Step> DigitSplit(bool individual_digits);
StatusOr<PreTokenizer::Step> PunctuationSplit(SplitBehavior behavior);

}  // namespace kvlathe
