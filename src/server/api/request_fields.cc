#include "server/api/request_fields.h"

#include <cmath>
#include <utility>

#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

// Whole numbers that an int64_t holds; unsigned ones above that, and fractions, are none.
std::optional<int64_t> WholeNumber(const Json& value) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::trunc(number) != number || !(number >= -kTwoTo63 && number < kTwoTo63)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

}  // namespace

std::string_view KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

const Json* RequestFields::Find(std::string_view name) const {
  if (!asked_.contains(name)) asked_.emplace(name);
  const auto field = object_.find(std::string(name));
  return field == object_.end() || field->is_null() ? nullptr : &*field;
}

std::vector<std::string> RequestFields::Unasked() const {
  constexpr size_t kMaxNames = 8, kMaxNameBytes = 64;  // they are clients' texts, for a log
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (asked_.contains(name) || value.is_null()) continue;
    names.push_back(name.substr(0, kMaxNameBytes));
    if (names.size() == kMaxNames) break;
  }
  return names;
}

void RequestFields::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const Json* RequestFields::Expect(std::string_view name, bool (Json::*is_type)() const noexcept,
                                  std::string_view type) {
  const Json* const value = Find(name);
  if (value == nullptr || (value->*is_type)()) return value;
  Fail(FieldError(PathOf(name), "this is {}; give {}", KindOf(*value), type));
  return nullptr;
}

std::optional<int64_t> RequestFields::Integer(std::string_view name, int64_t min, int64_t max) {
  const Json* const value = Expect(name, &Json::is_number, "a whole number");
  if (value == nullptr) return std::nullopt;
  const auto number = WholeNumber(*value);
  if (number && *number >= min && *number <= max) return number;
  Fail(FieldError(PathOf(name), "this is {}; give a whole number from {} to {}", Dump(*value), min,
                  max));
  return std::nullopt;
}

std::optional<double> RequestFields::Number(std::string_view name, double min, double max) {
  const Json* const value = Expect(name, &Json::is_number, "a number");
  if (value == nullptr) return std::nullopt;
  const auto number = value->get<double>();
  if (number >= min && number <= max) return number;
  Fail(FieldError(PathOf(name), "this is {}; give a number from {} to {}", Dump(*value), min, max));
  return std::nullopt;
}

std::optional<bool> RequestFields::Bool(std::string_view name) {
  const Json* const value = Expect(name, &Json::is_boolean, "true or false");
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<std::string> RequestFields::String(std::string_view name) {
  const Json* const value = Expect(name, &Json::is_string, "a string");
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

const Json* RequestFields::Object(std::string_view name) {
  return Expect(name, &Json::is_object, "an object");
}

const Json* RequestFields::Array(std::string_view name) {
  return Expect(name, &Json::is_array, "an array");
}

}  // namespace kvlathe::api
