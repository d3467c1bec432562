#include "evaluation/metrics.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "evaluation/ascii.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

struct NamedMetric {
  TaskMetric metric;
  std::string_view name;
};
constexpr NamedMetric kMetrics[] = {
    {TaskMetric::kExactMatch, "exact_match"},
    {TaskMetric::kF1, "f1"},
    {TaskMetric::kRouge1, "rouge1"},
    {TaskMetric::kRougeL, "rougeL"},
    {TaskMetric::kRougeLUnion, "rouge_l_union"},
    {TaskMetric::kEditSimilarity, "edit_similarity"},
    {TaskMetric::kChoice, "choice"},
    {TaskMetric::kFinalAnswer, "final_answer"},
    {TaskMetric::kOptionLetter, "option_letter"},
    {TaskMetric::kLineMatch, "line_match"},
    {TaskMetric::kFound, "found"},
    {TaskMetric::kJsonFields, "json_fields"},
    {TaskMetric::kStatedAnswer, "stated_answer"},
    {TaskMetric::kToolCall, "tool_call"},
};

bool IsAsciiPunctuation(char c) { return c > ' ' && c < 0x7F && !IsLetterOrDigit(c); }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

using Words = std::vector<std::string>;

// Cuts a text into runs of the characters that `keep` maps to something other than 0.
template <typename F>
Words CutIntoWords(std::string_view text, const F& keep) {
  Words words;
  bool in_word = false;
  for (const char c : text) {
    const char kept = keep(c);
    if (kept == 0) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    words.back() += kept;
    in_word = true;
  }
  return words;
}

Words SpacedWords(std::string_view text) {
  return CutIntoWords(text, [](char c) { return IsSpace(c) ? char{0} : c; });
}

Words RougeWords(std::string_view text) {
  return CutIntoWords(text, [](char c) { return IsLetterOrDigit(c) ? Lower(c) : char{0}; });
}

Words SquadWords(std::string_view text) {
  std::string bare;
  for (const char c : text) {
    if (!IsAsciiPunctuation(c)) bare += Lower(c);
  }
  Words words = SpacedWords(bare);
  std::erase_if(words, [](const std::string& w) { return w == "a" || w == "an" || w == "the"; });
  return words;
}

int64_t CountCommon(const Words& a, const Words& b) {
  std::map<std::string_view, int64_t> left;
  for (const std::string& word : b) ++left[word];
  int64_t n_common = 0;
  for (const std::string& word : a) {
    const auto it = left.find(word);
    if (it == left.end() || it->second == 0) continue;
    --it->second;
    ++n_common;
  }
  return n_common;
}

int64_t LongestCommonSubsequence(const Words& a, const Words& b) {
  std::vector<int64_t> row(b.size() + 1, 0);  // of the words of `a` so far
  for (const std::string& word : a) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

// Harmonic mean of n_common / n_output and n_common / n_reference.
double FMeasure(int64_t n_common, size_t n_output, size_t n_reference) {
  if (n_common == 0) return 0;
  return 2.0 * static_cast<double>(n_common) / static_cast<double>(n_output + n_reference);
}

std::vector<char32_t> CodePoints(std::string_view text) {
  constexpr char32_t kRawByte = 0x110000;  // above Unicode: no character equals a stray byte
  std::vector<char32_t> codes;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    if (c.state == Utf8Char::State::kWhole) {
      codes.push_back(c.code);
      pos += c.n_bytes;
    } else {
      codes.push_back(kRawByte + static_cast<unsigned char>(text[pos++]));
    }
  }
  return codes;
}

size_t Levenshtein(std::span<const char32_t> a, std::span<const char32_t> b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] != b[j])});
      diagonal = above;
    }
  }
  return row.back();
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  text = Trim(text);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

struct Number {
  size_t end = 0;  // behind its last digit
  std::string canonical;
};

// A comma that groups: after one to three digits, before exactly three.
bool GroupsDigits(std::string_view text, size_t comma) {
  size_t n_digits = 0;
  while (comma + 1 + n_digits < text.size() && IsDigit(text[comma + 1 + n_digits])) ++n_digits;
  return n_digits == 3;
}

bool HasMinus(std::string_view text, size_t begin) {
  if (begin > 0 && text[begin - 1] == '$') --begin;
  if (begin == 0 || text[begin - 1] != '-') return false;
  if (begin == 1) return true;
  const char before = text[begin - 2];
  return !IsLetterOrDigit(before) && before != ')' && before != '.';
}

// The number whose first digit, or the point before it, is text[begin].
Number ReadNumber(std::string_view text, size_t begin) {
  std::string whole, fraction;
  size_t pos = begin;
  bool grouped = false;
  for (; pos < text.size(); ++pos) {
    if (IsDigit(text[pos])) {
      whole += text[pos];
    } else if (text[pos] == ',' && (grouped || (!whole.empty() && whole.size() <= 3)) &&
               GroupsDigits(text, pos)) {
      grouped = true;
    } else {
      break;
    }
  }
  if (pos + 1 < text.size() && text[pos] == '.' && IsDigit(text[pos + 1])) {
    for (++pos; pos < text.size() && IsDigit(text[pos]); ++pos) fraction += text[pos];
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  Number number{pos, whole.empty() ? "0" : whole};
  if (!fraction.empty()) number.canonical += "." + fraction;
  if (HasMinus(text, begin) && number.canonical != "0") number.canonical = "-" + number.canonical;
  return number;
}

// The first number at `pos` or behind it.
std::optional<Number> NextNumber(std::string_view text, size_t pos) {
  for (; pos < text.size(); ++pos) {
    const bool at_point = text[pos] == '.' && pos + 1 < text.size() && IsDigit(text[pos + 1]) &&
                          (pos == 0 || !IsDigit(text[pos - 1]));
    if (at_point || IsDigit(text[pos])) return ReadNumber(text, pos);
  }
  return std::nullopt;
}

constexpr std::string_view kAnswerIs = "answer is";

std::string Lowered(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += Lower(c);
  return lower;
}

// The first number that stands behind `mark` on its line. `lower` is the text in lower case.
std::optional<Number> NumberBehind(std::string_view mark, std::string_view text,
                                   std::string_view lower) {
  for (size_t pos = lower.find(mark); pos != std::string::npos; pos = lower.find(mark, pos)) {
    pos += mark.size();
    const std::string_view lines = text.substr(0, text.find('\n', pos));
    std::optional<Number> number = NextNumber(lines, pos);
    if (number.has_value()) return number;
  }
  return std::nullopt;
}

bool IsOptionLetter(char c) { return c >= 'A' && c <= 'E'; }

bool StandsAlone(std::string_view text, size_t pos) {
  return (pos == 0 || !IsPartOfWord(text[pos - 1])) &&
         (pos + 1 == text.size() || !IsPartOfWord(text[pos + 1]));
}

// The letter that text[pos...] opens with, past spaces and marks: " (B)", ": C", " **d)".
std::optional<char> LetterAt(std::string_view text, size_t pos) {
  pos = text.find_first_not_of(" \t\n:,*('\"$\\{[", pos);
  if (pos == std::string_view::npos || !StandsAlone(text, pos)) return std::nullopt;
  if (IsOptionLetter(text[pos])) return text[pos];
  const bool is_marked = pos + 1 < text.size() && text[pos + 1] == ')';
  const char upper = static_cast<char>(text[pos] - 'a' + 'A');
  return is_marked && IsOptionLetter(upper) ? std::optional(upper) : std::nullopt;
}

double ScoreOne(TaskMetric metric, std::string_view output, std::string_view reference) {
  switch (metric) {
    case TaskMetric::kExactMatch:
    case TaskMetric::kChoice:
      return IsExactMatch(output, reference) ? 1 : 0;
    case TaskMetric::kF1:
      return F1(output, reference);
    case TaskMetric::kRouge1:
      return Rouge1(output, reference);
    case TaskMetric::kRougeL:
      return RougeL(output, reference);
    case TaskMetric::kRougeLUnion:
      return RougeLUnion(output, reference);
    case TaskMetric::kEditSimilarity:
      return EditSimilarity(output, reference);
    case TaskMetric::kFinalAnswer: {
      const std::optional<std::string> wanted = FinalAnswer(reference);
      return wanted.has_value() && FinalAnswer(output) == wanted ? 1 : 0;
    }
    case TaskMetric::kOptionLetter: {
      const std::optional<char> wanted = OptionLetter(reference);
      return wanted.has_value() && OptionLetter(output) == wanted ? 1 : 0;
    }
    case TaskMetric::kLineMatch:
      return LineMatch(output, reference);
    case TaskMetric::kFound:
      return StandsIn(output, reference) ? 1 : 0;
    case TaskMetric::kJsonFields:
      return JsonFields(output, reference);
    case TaskMetric::kStatedAnswer: {
      const std::optional<std::string> stated = StatedAnswer(output);
      const std::string wanted = StatedAnswer(reference).value_or(std::string(reference));
      return stated.has_value() && IsExactMatch(*stated, wanted) ? 1 : 0;
    }
    case TaskMetric::kToolCall:
      return JudgeCall(output, reference).is_right() ? 1 : 0;
  }
  return 0;
}

}  // namespace

std::string_view MetricName(TaskMetric metric) {
  for (const NamedMetric& named : kMetrics) {
    if (named.metric == metric) return named.name;
  }
  return "unknown";
}

StatusOr<TaskMetric> ParseMetric(std::string_view name) {
  std::string names;
  for (const NamedMetric& named : kMetrics) {
    if (named.name == name) return named.metric;
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  }
  return Error(StatusCode::kInvalidArgument, "there is no metric \"{}\"; there are {}", name,
               names);
}

double Score(TaskMetric metric, std::string_view output, std::span<const std::string> references) {
  double best = 0, sum = 0;
  for (const std::string& reference : references) {
    const double score = ScoreOne(metric, Trim(output), Trim(reference));
    best = std::max(best, score);
    sum += score;
  }
  if (metric != TaskMetric::kFound || references.empty()) return best;
  return sum / static_cast<double>(references.size());
}

bool IsExactMatch(std::string_view output, std::string_view reference) {
  return SpacedWords(output) == SpacedWords(reference);
}

double F1(std::string_view output, std::string_view reference) {
  const Words a = SquadWords(output), b = SquadWords(reference);
  if (a.empty() || b.empty()) return a.empty() && b.empty() ? 1 : 0;
  return FMeasure(CountCommon(a, b), a.size(), b.size());
}

double Rouge1(std::string_view output, std::string_view reference) {
  const Words a = RougeWords(output), b = RougeWords(reference);
  return FMeasure(CountCommon(a, b), a.size(), b.size());
}

double RougeL(std::string_view output, std::string_view reference) {
  const Words a = RougeWords(output), b = RougeWords(reference);
  return FMeasure(LongestCommonSubsequence(a, b), a.size(), b.size());
}

double EditSimilarity(std::string_view output, std::string_view reference) {
  const std::vector<char32_t> a = CodePoints(output), b = CodePoints(reference);
  const size_t longer = std::max(a.size(), b.size());
  if (longer == 0) return 1;
  return 1.0 - static_cast<double>(Levenshtein(a, b)) / static_cast<double>(longer);
}

std::optional<std::string> FinalAnswer(std::string_view text) {
  const std::string lower = Lowered(text);
  std::optional<Number> answer = NumberBehind("####", text, lower);
  if (!answer.has_value()) answer = NumberBehind(kAnswerIs, text, lower);
  if (answer.has_value()) return std::move(answer->canonical);
  std::optional<std::string> last;
  for (size_t pos = 0; (answer = NextNumber(text, pos)).has_value(); pos = answer->end) {
    last = std::move(answer->canonical);
  }
  return last;
}

std::optional<char> OptionLetter(std::string_view text) {
  const std::string lower = Lowered(text);
  for (size_t end = lower.size();;) {
    const size_t begin = lower.rfind(kAnswerIs, end);
    if (begin == std::string::npos) break;
    if (const auto letter = LetterAt(text, begin + kAnswerIs.size())) return letter;
    if (begin == 0) break;
    end = begin - 1;
  }
  for (size_t pos = text.size(); pos-- > 0;) {
    if (IsOptionLetter(text[pos]) && StandsAlone(text, pos)) return text[pos];
  }
  return std::nullopt;
}

double LineMatch(std::string_view output, std::string_view reference) {
  const std::vector<std::string_view> a = Lines(output), b = Lines(reference);
  if (b.empty()) return a.empty() ? 1 : 0;
  int n_equal = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) n_equal += IsExactMatch(a[i], b[i]);
  return n_equal / static_cast<double>(b.size());
}

}  // namespace kvlathe
