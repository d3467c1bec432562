#include "evaluation/tasks/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace kvlathe {
namespace {

std::string WithoutSpace(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') kept += c;
  }
  return kept;
}

template <typename T>
std::optional<T> Parsed(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

}  // namespace

StatusOr<TaskParameters> TaskParameters::Parse(std::string_view text) {
  const auto malformed = [&](std::string_view what) {
    return Error(StatusCode::kInvalidArgument, "task '{}': {}; write name(key=value, key=value)",
                 text, what);
  };
  TaskParameters parameters;
  parameters.text_ = WithoutSpace(text);
  std::string_view rest = parameters.text_;
  const size_t open = rest.find('(');
  parameters.name_ = rest.substr(0, open);
  if (open == std::string_view::npos) return parameters;
  if (rest.find_first_of("()", open + 1) != rest.size() - 1) {
    return malformed("one bracket that is closed at the end is all there may be");
  }
  rest = rest.substr(open + 1, rest.size() - open - 2);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == pair.size()) {
      return malformed(fmt::format("'{}' is not key=value", pair));
    }
    const std::string key(pair.substr(0, equals));
    if (!parameters.given_.emplace(key, pair.substr(equals + 1)).second) {
      return malformed(fmt::format("'{}' is given twice", key));
    }
  }
  if (parameters.given_.empty()) parameters.text_ = parameters.name_;
  return parameters;
}

const std::string* TaskParameters::Take(std::string_view key, const std::string& takes) {
  signature_ += fmt::format("{}{}={}", signature_.empty() ? "" : ", ", key, takes);
  asked_.emplace(key, takes);
  const auto it = given_.find(key);
  return it == given_.end() ? nullptr : &it->second;
}

void TaskParameters::RefuseValue(std::string_view key, std::string_view value,
                                 std::string_view takes) {
  Refuse(fmt::format("{}={} is not one of {}", key, value, takes));
}

void TaskParameters::Refuse(std::string_view why) {
  if (wrong_.empty()) wrong_ = why;
}

int TaskParameters::Integer(std::string_view key, int default_value, int min, int max) {
  const std::string takes = fmt::format("{}..{}", min, max);
  const std::string* text = Take(key, takes);
  if (text == nullptr) return default_value;
  const std::optional<int> value = Parsed<int>(*text);
  if (value.has_value() && *value >= min && *value <= max) return *value;
  RefuseValue(key, *text, takes);
  return default_value;
}

double TaskParameters::Number(std::string_view key, double default_value, double min, double max) {
  const std::string takes = fmt::format("{}..{}", min, max);
  const std::string* text = Take(key, takes);
  if (text == nullptr) return default_value;
  const std::optional<double> value = Parsed<double>(*text);
  if (value.has_value() && *value >= min && *value <= max) return *value;
  RefuseValue(key, *text, takes);
  return default_value;
}

int TaskParameters::Choice(std::string_view key, int default_value,
                           std::span<const std::string_view> names) {
  const std::string takes = fmt::format("{}", fmt::join(names, "|"));
  const std::string* text = Take(key, takes);
  if (text == nullptr) return default_value;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == *text) return static_cast<int>(i);
  }
  RefuseValue(key, *text, takes);
  return default_value;
}

Status TaskParameters::Finish() const {
  std::string wrong = wrong_;
  for (const auto& [key, value] : given_) {
    if (!asked_.contains(key)) wrong = fmt::format("there is no parameter '{}'", key);
  }
  if (wrong.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "task {}: {}; it takes {}", name_, wrong,
               signature_.empty() ? "no parameters" : signature_);
}

}  // namespace kvlathe
