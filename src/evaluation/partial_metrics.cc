// Metrics that look for parts of an answer: texts that stand in it, fields of a JSON object.
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

}  // namespace kvlathe
