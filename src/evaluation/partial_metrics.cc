// Metrics that look for parts of an answer: texts that stand in it, fields of a JSON object, a call
// of a tool, what it says is the answer.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "evaluation/ascii.h"
#include "evaluation/metrics.h"

namespace kvlathe {
namespace {

// Lower case, one space for every run of white space, none at either end.
std::string Normalised(std::string_view text) {
  std::string normal;
  for (const char c : text) {
    if (!IsSpace(c)) {
      normal += Lower(c);
    } else if (!normal.empty() && normal.back() != ' ') {
      normal += ' ';
    }
  }
  if (!normal.empty() && normal.back() == ' ') normal.pop_back();
  return normal;
}

// From the first '{' to the brace that closes it; empty when there is none. Braces inside strings
// do not count.
std::string_view FirstObject(std::string_view text) {
  const size_t begin = text.find('{');
  if (begin == std::string_view::npos) return {};
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return text.substr(begin, i + 1 - begin);
    }
  }
  return {};
}

nlohmann::json ParseObject(std::string_view text) {
  return nlohmann::json::parse(FirstObject(text), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

bool StandsIn(std::string_view output, std::string_view reference) {
  const std::string text = Normalised(output), wanted = Normalised(reference);
  if (wanted.empty()) return false;
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    const bool begins = at == 0 || !IsPartOfWord(text[at - 1]) || !IsPartOfWord(text[at]);
    const bool ends =
        end == text.size() || !IsPartOfWord(text[end]) || !IsPartOfWord(text[end - 1]);
    if (begins && ends) return true;
  }
  return false;
}

double JsonFields(std::string_view output, std::string_view reference) {
  const nlohmann::json object = ParseObject(output), wanted = ParseObject(reference);
  if (!object.is_object() || !wanted.is_object() || wanted.empty()) return 0;
  int n_equal = 0;
  for (const auto& [key, value] : wanted.items()) {
    const auto found = object.find(key);
    n_equal += found != object.end() && *found == value;
  }
  return n_equal / static_cast<double>(wanted.size());
}

CallMarks JudgeCall(std::string_view output, std::string_view reference) {
  while (!output.empty() && IsSpace(output.front())) output.remove_prefix(1);
  if (!output.starts_with('{')) return {};
  const nlohmann::json call = ParseObject(output), wanted = ParseObject(reference);
  CallMarks marks;
  marks.is_json = call.is_object();
  if (!marks.is_json || !wanted.is_object()) return marks;
  const auto has_its = [&](const char* key) {
    const auto given = call.find(key), asked = wanted.find(key);
    return given != call.end() && asked != wanted.end() && *given == *asked;
  };
  marks.names_tool = has_its("name");
  marks.has_arguments = has_its("arguments");
  return marks;
}

std::optional<StatedText> FindStatedAnswer(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += Lower(c);
  for (const std::string_view mark : {"so the answer is", "answer is"}) {
    for (size_t at = lower.find(mark); at != std::string::npos; at = lower.find(mark, at + 1)) {
      const size_t begin = text.find_first_not_of(" \t\r:", at + mark.size());
      size_t end = std::min(begin, text.size());
      // A full stop ends it, unless it stands in a number.
      const auto ends = [&](size_t i) {
        return text[i] == '\n' ||
               (text[i] == '.' && !(i + 1 < text.size() && IsDigit(text[i + 1])));
      };
      while (end < text.size() && !ends(end)) ++end;
      // What follows a full stop at the end of the text is not known yet.
      const bool is_whole = end + (end < text.size() && text[end] == '.' ? 1 : 0) < text.size();
      std::string_view answer = text.substr(std::min(begin, end), end - std::min(begin, end));
      while (!answer.empty() && IsSpace(answer.back())) answer.remove_suffix(1);
      if (!answer.empty()) return StatedText{std::string(answer), is_whole};
    }
  }
  return std::nullopt;
}

std::optional<std::string> StatedAnswer(std::string_view text) {
  std::optional<StatedText> stated = FindStatedAnswer(text);
  if (!stated.has_value()) return std::nullopt;
  return std::move(stated->answer);
}

}  // namespace kvlathe
