#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

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
  while (pos < text.size() && step.regex.Find(text, pos, scratch, &match)) {
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
  while (pos < text.size() && step.regex.Find(text, pos, scratch, &match)) {
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
  if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
    return 2 * static_cast<double>(metaspace->replacement.size());  // a space, and one in front
  }
  return 2;  // a space in front of a byte; a byte as a character of two
}

// The expressions are those that the models' own tokenizers publish.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Status AddFalconSteps(PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(SplitStep punctuation, PunctuationSplit(SplitBehavior::kContiguous));
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(punctuation)));
  KVL_ASSIGN_OR_RETURN(SplitStep words, Gpt2Split());
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(words)));
  KVL_RETURN_IF_ERROR(out->AddStep(ByteAlphabetStep{}));
  KVL_ASSIGN_OR_RETURN(SplitStep digits, DigitSplit(/*individual_digits=*/false));
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(digits)));
  KVL_ASSIGN_OR_RETURN(SplitStep triples, IsolatedSplit("[0-9][0-9][0-9]"));
  return out->AddStep(std::move(triples));
}

}  // namespace

StatusOr<SplitStep> IsolatedSplit(std::string_view pattern) {
  KVL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  return SplitStep{.regex = std::move(regex)};
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

StatusOr<PreTokenizer> NamedPreTokenizer(std::string_view name) {
  PreTokenizer pre_tokenizer;
  if (name == "falcon") {
    KVL_RETURN_IF_ERROR(AddFalconSteps(&pre_tokenizer));
    return pre_tokenizer;
  }
  std::string_view pattern;
  if (name == "gpt2") pattern = kGpt2Pattern;
  if (name == "llama3" || name == "qwen2") pattern = PublishedPattern(name);
  if (pattern.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "unknown pre-tokenizer \"{}\"; known are gpt2, llama3, qwen2 and falcon", name);
  }
  KVL_ASSIGN_OR_RETURN(SplitStep split, IsolatedSplit(pattern));
  KVL_RETURN_IF_ERROR(pre_tokenizer.AddStep(std::move(split)));
  return pre_tokenizer;
}

std::string_view PublishedPattern(std::string_view name) {
  return name == "llama3" ? kLlama3Pattern : kQwen2Pattern;
}

StatusOr<SplitStep> Gpt2Split() { return IsolatedSplit(kGpt2Pattern); }

StatusOr<SplitStep> DigitSplit(bool individual_digits) {
  return IsolatedSplit(individual_digits ? R"(\p{N})" : R"(\p{N}+)");
}

StatusOr<SplitStep> PunctuationSplit(SplitBehavior behavior) {
  // \p{P} and the ASCII signs that Unicode counts as symbols. One expression for a run is the same
  // as joining single matches and needs no list.
  const bool is_contiguous = behavior == SplitBehavior::kContiguous;
  KVL_ASSIGN_OR_RETURN(SplitStep split, IsolatedSplit(is_contiguous ? R"([\p{P}$+<=>^`|~]+)"
                                                                    : R"([\p{P}$+<=>^`|~])"));
  if (!is_contiguous) split.behavior = behavior;
  return split;
}

}  // namespace kvlathe
