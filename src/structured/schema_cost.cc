#include "structured/schema_cost.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMuch = 1'000'000;
constexpr int64_t kMostUnrolled = 128;      // XGrammar counts longer bounds
constexpr int64_t kCountedSquare = 16'384;  // their squares in one state
constexpr int64_t kMultiplesInState = 8;
constexpr int64_t kFormat = 2;
constexpr int64_t kPatternBytesInState = 3;
constexpr int64_t kOptionalCube = 128;  // of the optional parts of a pattern, in one state
constexpr int64_t kValuesInState = 32;

// A number from 0 to kMuch; 0 where there is none.
int64_t NumberOf(const Json& schema, const char* key) {
  const auto entry = schema.find(key);
  if (entry == schema.end() || !entry->is_number()) return 0;
  const double number = entry->get<double>();
  return number > 0 ? static_cast<int64_t>(std::min(number, static_cast<double>(kMuch))) : 0;
}

int64_t PatternCost(std::string_view pattern) {
  const int64_t repetition = PatternRepetition(pattern, kMuch);
  const int64_t n_optional = std::ranges::count(pattern, '?');
  return std::ssize(pattern) / kPatternBytesInState + (repetition > 1 ? repetition : 0) +
         n_optional * n_optional * n_optional / kOptionalCube;
}

// Of an object's own keywords.
int64_t OwnCost(const Json& schema, bool has_texts) {
  int64_t cost = NumberOf(schema, "multipleOf") / kMultiplesInState;
  if (has_texts) {
    const int64_t length = std::max(NumberOf(schema, "minLength"), NumberOf(schema, "maxLength"));
    cost += length <= kMostUnrolled ? length : 1 + length * length / kCountedSquare;
    if (schema.contains("format")) cost += kFormat;
    if (const auto pattern = schema.find("pattern");
        pattern != schema.end() && pattern->is_string()) {
      cost += PatternCost(pattern->get_ref<const std::string&>());
    }
  }
  if (const auto named = schema.find("patternProperties");
      named != schema.end() && named->is_object()) {
    for (const auto& item : named->items()) cost += PatternCost(item.key());
  }
  return cost;
}

// Adds to `n_values` how many values there are.
int64_t CostOf(const Json& value, bool texts_in_grammar, bool are_names, int64_t* n_values) {
  int64_t cost = value.is_object() ? OwnCost(value, texts_in_grammar || are_names) : 0;
  *n_values += std::ssize(value);
  for (const auto& item : value.items()) {
    const bool names = value.is_object() && item.key() == "propertyNames";
    if (item.value().is_structured()) {
      cost += CostOf(item.value(), texts_in_grammar, names, n_values);
    }
  }
  return cost;
}

}  // namespace

int64_t SchemaCost(const Json& schema, bool texts_in_grammar) {
  int64_t n_values = 0;
  const int64_t cost = CostOf(schema, texts_in_grammar, /*are_names=*/false, &n_values);
  return cost + n_values / kValuesInState;
}

int64_t PatternRepetition(std::string_view pattern, int64_t at_most) {
  int64_t product = 1;
  for (size_t at = pattern.find('{'); at != std::string_view::npos;
       at = pattern.find('{', at + 1)) {
    int64_t largest = 1;
    size_t end = at + 1;
    while (end < pattern.size() &&
           (std::isdigit(static_cast<unsigned char>(pattern[end])) != 0 || pattern[end] == ',')) {
      ++end;
    }
    std::string_view numbers = pattern.substr(at + 1, end - at - 1);
    while (!numbers.empty()) {
      int64_t number = 0;
      const auto [p, error] =
          std::from_chars(numbers.data(), numbers.data() + numbers.size(), number);
      if (error == std::errc::result_out_of_range) return at_most + 1;
      largest = std::max(largest, number);
      const size_t comma = numbers.find(',');
      numbers = comma == std::string_view::npos ? "" : numbers.substr(comma + 1);
    }
    product *= std::min(largest, at_most + 1);
    if (product > at_most) return at_most + 1;
  }
  return product;
}

bool HasNestedRepetition(std::string_view pattern) {
  std::vector<bool> repeats = {false};  // of the groups that are open, the outermost first
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (c == '[') {
      while (++i < pattern.size() && pattern[i] != ']') {
        if (pattern[i] == '\\') ++i;
      }
    } else if (c == '(') {
      repeats.push_back(false);
      if (i + 1 < pattern.size() && pattern[i + 1] == '?') ++i;  // (?:
    } else if (c == ')' && repeats.size() > 1) {
      const bool has_repetition = repeats.back();
      repeats.pop_back();
      const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
      if (has_repetition && (next == '*' || next == '+' || next == '{')) return true;
      if (has_repetition) repeats.back() = true;
    } else if (c == '*' || c == '+' || c == '?' || c == '{') {
      repeats.back() = true;
    }
  }
  return false;
}

}  // namespace kvlathe
