#include "tokenizer/splitting/pre_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

struct Range {
  size_t begin;
  size_t end;
  bool is_match;
};

// Matches and the gaps between them, in order, without empty gaps.
std::vector<Range> RangesOf(const SplitStep& step, std::string_view text, RegexScratch* scratch) {
  std::vector<Range> ranges;
  size_t pos = 0;
  Regex::Match match;
  RegexMatches matches(step.regex, text, scratch);
  while (matches.Next(&match)) {
    if (match.begin > pos) ranges.push_back({pos, match.begin, step.invert});
    ranges.push_back({match.begin, match.end, !step.invert});
    pos = match.end;
  }
  if (pos < text.size()) ranges.push_back({pos, text.size(), step.invert});
  return ranges;
}

// Joins neighbours as the behaviour says, in place.
void JoinRanges(SplitBehavior behavior, std::vector<Range>* ranges) {
  const bool from_end = behavior == SplitBehavior::kMergedWithNext;
  if (from_end) std::reverse(ranges->begin(), ranges->end());
  std::vector<Range> joined;
  bool previous_is_match = false;
  for (const Range& range : *ranges) {
    const bool joins = behavior == SplitBehavior::kContiguous
                           ? range.is_match == previous_is_match
                           : range.is_match && !previous_is_match;
    if (joins && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, range.begin);
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
    previous_is_match = range.is_match;
  }
  if (from_end) std::reverse(joined.begin(), joined.end());
  *ranges = std::move(joined);
}

void SplitIsolated(const SplitStep& step, std::string_view text, RegexScratch* scratch,
                   PreTokenizer::PieceSink sink) {
  size_t pos = 0;
  Regex::Match match;
  RegexMatches matches(step.regex, text, scratch);
  while (matches.Next(&match)) {
    if (match.begin > pos) sink(text.substr(pos, match.begin - pos));
    sink(text.substr(match.begin, match.end - match.begin));
    pos = match.end;
  }
  if (pos < text.size()) sink(text.substr(pos));
}

void SplitPiece(const SplitStep& step, std::string_view text, RegexScratch* scratch,
                PreTokenizer::PieceSink sink) {
  // The usual case needs no list of ranges, which for a book would be larger than the book.
  if (step.behavior == SplitBehavior::kIsolated) return SplitIsolated(step, text, scratch, sink);
  std::vector<Range> ranges = RangesOf(step, text, scratch);
  if (step.behavior == SplitBehavior::kRemoved) {
    std::erase_if(ranges, [](const Range& range) { return range.is_match; });
  } else {
    JoinRanges(step.behavior, &ranges);
  }
  for (const Range& range : ranges) sink(text.substr(range.begin, range.end - range.begin));
}

bool IsDigitOf(DigitGroupStep::Kind kind, char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  if (category == UTF8PROC_CATEGORY_ND) return true;
  return kind == DigitGroupStep::Kind::kNumbers &&
         (category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO);
}

// What \w of Oniguruma matches: the raised digits and fractions of Latin-1 too.
bool IsOnigurumaWordChar(char32_t code) {
  return IsWordChar(code) || code == 0xB2 || code == 0xB3 || code == 0xB9 ||
         (code >= 0xBC && code <= 0xBE);
}

// The ends of the digits of the number that begins at `pos`.
std::vector<size_t> DigitEnds(DigitGroupStep::Kind kind, std::string_view text, size_t pos) {
  std::vector<size_t> ends;
  while (pos < text.size()) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    if (!IsDigitOf(kind, c.code)) break;
    pos += static_cast<size_t>(c.n_bytes);
    ends.push_back(pos);
  }
  return ends;
}

void SplitDigitGroups(const DigitGroupStep& step, std::string_view text,
                      PreTokenizer::PieceSink sink) {
  using Kind = DigitGroupStep::Kind;
  size_t done = 0;  // where the piece that is not yet given begins
  const auto cut = [&](size_t end) {
    if (end > done) sink(text.substr(done, end - done));
    done = end;
  };
  for (size_t pos = 0; pos < text.size();) {
    const std::vector<size_t> ends = DigitEnds(step.kind, text, pos);
    if (ends.empty()) {
      pos += static_cast<size_t>(ReadAsciiOrUtf8(text, pos).n_bytes);
      continue;
    }
    const size_t end = ends.back(), n_first = ends.size() % 3;
    const bool is_word = step.kind == Kind::kWords && end < text.size() &&
                         IsOnigurumaWordChar(ReadAsciiOrUtf8(text, end).code);
    if (!is_word) {
      if (step.kind != Kind::kCuts || n_first == 0) cut(pos);
      for (size_t i = n_first; i < ends.size(); i += 3) {
        if (i > 0) cut(ends[i - 1]);
      }
      if (step.kind != Kind::kCuts) cut(end);
    }
    pos = end;
  }
  cut(text.size());
}

std::string WithMetaspaces(const MetaspaceStep& step, std::string_view text, bool is_text_start) {
  std::string rewritten;
  rewritten.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      rewritten += step.replacement;
    } else {
      rewritten.push_back(c);
    }
  }
  const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                        (step.prepend == MetaspaceStep::Prepend::kFirst && is_text_start);
  if (prepends && !rewritten.starts_with(step.replacement)) rewritten.insert(0, step.replacement);
  return rewritten;
}

bool DropsText(const PreTokenizer::Step& step) {
  const auto* split = std::get_if<SplitStep>(&step);
  if (split != nullptr) return split->behavior == SplitBehavior::kRemoved;
  const auto* metaspace = std::get_if<MetaspaceStep>(&step);
  return metaspace != nullptr && metaspace->replacement.empty();
}

double GrowthOf(const PreTokenizer::Step& step) {
  if (std::holds_alternative<SplitStep>(step)) return 1;
  if (std::holds_alternative<DigitGroupStep>(step)) return 1;
  if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
    return 2 * static_cast<double>(metaspace->replacement.size());  // a space, and one in front
  }
  return 2;  // a space in front of a byte; a byte as a character of two
}

// Expressions of published files whose matches take the square of a text's length, or a stack that
// grows with it, and what finds the same matches in one pass.
constexpr std::pair<std::string_view, std::string_view> kFasterPatterns[] = {
    // Only a run of white space that begins before the one in question can reach as far.
    {R"(\s+$)", R"((?<!\s)\s+$)"},
    // K-EXAONE. Nothing follows what repeats, so that no step back finds more.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?>\p{L}(?:[\p{L}\p{M}]++| (?=\p{L}))*+)|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"},
};

constexpr std::pair<std::string_view, DigitGroupStep::Kind> kDigitGroupPatterns[] = {
    {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", DigitGroupStep::Kind::kNumbers},
    {R"(\d{1,3}(?=(?:\d{3})*\b))", DigitGroupStep::Kind::kWords},
    {R"((?=(\d{3})+(?!\d)))", DigitGroupStep::Kind::kCuts},
};

}  // namespace

StatusOr<PreTokenizer::Step> PatternSplit(std::string_view pattern, SplitBehavior behavior,
                                          bool invert, RegexSyntax syntax) {
  if (behavior == SplitBehavior::kIsolated) {
    for (const auto& [known, kind] : kDigitGroupPatterns) {
      if (pattern == known) return DigitGroupStep{kind};
    }
  }
  for (const auto& [known, faster] : kFasterPatterns) {
    if (pattern == known) pattern = faster;
  }
  KVL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern, syntax));
  return SplitStep{.regex = std::move(regex), .behavior = behavior, .invert = invert};
}

StatusOr<PreTokenizer::Step> IsolatedSplit(std::string_view pattern) {
  return PatternSplit(pattern, SplitBehavior::kIsolated, /*invert=*/false, RegexSyntax::kOniguruma);
}

Status PreTokenizer::AddStep(Step step) {
  if (steps_.size() == kMaxSteps) {
    return Error(StatusCode::kUnimplemented, "more than {} pre-tokenizer steps", kMaxSteps);
  }
  KVL_RETURN_IF_ERROR(growth_.Add(GrowthOf(step), "a pre_tokenizer"));
  if (std::holds_alternative<ByteAlphabetStep>(step)) {
    if (ends_in_byte_alphabet_) {
      return Error(StatusCode::kUnimplemented, "two ByteLevel pre-tokenizers in one sequence");
    }
    ends_in_byte_alphabet_ = true;
  }
  drops_text_ |= DropsText(step);
  steps_.push_back(std::move(step));
  return OkStatus();
}

void PreTokenizer::RunFrom(size_t step_idx, std::string_view piece, const Context& context) const {
  if (piece.empty()) return;
  if (step_idx == steps_.size()) {
    if (!ends_in_byte_alphabet_) return context.sink(piece);
    const std::optional<std::string> bytes = AlphabetToBytes(piece);
    return context.sink(bytes ? std::string_view(*bytes) : piece);
  }
  const Step& step = steps_[step_idx];
  if (const auto* split = std::get_if<SplitStep>(&step)) {
    SplitPiece(*split, piece, context.scratch,
               [&](std::string_view part) { RunFrom(step_idx + 1, part, context); });
  } else if (const auto* digits = std::get_if<DigitGroupStep>(&step)) {
    SplitDigitGroups(*digits, piece,
                     [&](std::string_view part) { RunFrom(step_idx + 1, part, context); });
  } else if (std::holds_alternative<PrefixSpaceStep>(step)) {
    if (piece.starts_with(' ')) return RunFrom(step_idx + 1, piece, context);
    RunFrom(step_idx + 1, " " + std::string(piece), context);
  } else if (std::holds_alternative<ByteAlphabetStep>(step)) {
    RunFrom(step_idx + 1, BytesToAlphabet(piece), context);
  } else {
    const auto& metaspace = std::get<MetaspaceStep>(step);
    RunFrom(step_idx + 1, WithMetaspaces(metaspace, piece, context.is_text_start), context);
  }
}

void PreTokenizer::Split(std::string_view text, bool is_text_start, RegexScratch* scratch,
                         PieceSink sink) const {
  if (steps_.empty()) {
    if (!text.empty()) sink(text);
    return;
  }
  for (size_t pos = 0; pos < text.size();) {
    const size_t well_formed_end = EndOfWellFormedRun(text, pos);
    RunFrom(0, text.substr(pos, well_formed_end - pos), {scratch, sink, is_text_start && pos == 0});
    pos = EndOfIllFormedRun(text, well_formed_end);
    if (pos > well_formed_end) sink(text.substr(well_formed_end, pos - well_formed_end));
  }
}

StatusOr<PreTokenizer::Step> Gpt2Split() { return IsolatedSplit(kGpt2Pattern); }

StatusOr<PreTokenizer::Step> DigitSplit(bool individual_digits) {
  return IsolatedSplit(individual_digits ? R"(\p{N})" : R"(\p{N}+)");
}

StatusOr<PreTokenizer::Step> PunctuationSplit(SplitBehavior behavior) {
  // \p{P} and the ASCII signs that Unicode counts as symbols. One expression for a run is the same
  // as joining single matches and needs no list.
  if (behavior == SplitBehavior::kContiguous) return IsolatedSplit(R"([\p{P}$+<=>^`|~]+)");
  return PatternSplit(R"([\p{P}$+<=>^`|~])", behavior, /*invert=*/false, RegexSyntax::kOniguruma);
}

}  // namespace kvlathe
