// ConfigFields gives typed access to one JSON object, with errors that name the file and the key.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// References its arguments. A key that is null counts as absent.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, const std::string& where)
      : object_(object), where_(where) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  bool IsNull(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }
  const nlohmann::json& at(const char* key) const { return object_.at(key); }
  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }

  StatusOr<int> Integer(const char* key, int64_t low, int64_t high) const {
    if (!Has(key)) return Missing(key);
    const nlohmann::json& value = object_.at(key);
    const int64_t number = value.is_number_integer() ? value.get<int64_t>() : low - 1;
    const bool wraps = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(high);
    if (number < low || number > high || wraps) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected an integer from {} to {}",
                   where_, key, value.dump(), low, high);
    }
    return static_cast<int>(number);
  }
  StatusOr<int> IntegerOr(const char* key, int fallback, int64_t low, int64_t high) const {
    if (!Has(key)) return fallback;
    return Integer(key, low, high);
  }
  StatusOr<double> NumberOr(const char* key, double fallback, double low, double high) const {
    if (!Has(key)) return fallback;
    return CheckNumber(key, object_.at(key), low, high);
  }
  // Exactly n_values numbers.
  StatusOr<std::vector<double>> Numbers(const char* key, size_t n_values, double low,
                                        double high) const {
    if (!Has(key)) return Missing(key);
    const nlohmann::json& list = object_.at(key);
    if (!list.is_array() || list.size() != n_values) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is not a list of {} numbers", where_, key,
                   n_values);
    }
    std::vector<double> numbers;
    for (const nlohmann::json& value : list) {
      KVL_ASSIGN_OR_RETURN(const double number, CheckNumber(key, value, low, high));
      numbers.push_back(number);
    }
    return numbers;
  }
  StatusOr<bool> BoolOr(const char* key, bool fallback) const {
    if (!Has(key)) return fallback;
    if (!object_.at(key).is_boolean()) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected true or false", where_, key,
                   object_.at(key).dump());
    }
    return object_.at(key).get<bool>();
  }
  StatusOr<std::string> StringOr(const char* key, std::string fallback) const {
    if (!Has(key)) return fallback;
    if (!object_.at(key).is_string()) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected a string", where_, key,
                   object_.at(key).dump());
    }
    return object_.at(key).get<std::string>();
  }

 private:
  Status Missing(const char* key) const {
    return Error(StatusCode::kDataLoss, "{}: '{}' is missing", where_, key);
  }
  StatusOr<double> CheckNumber(const char* key, const nlohmann::json& value, double low,
                               double high) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= low && number <= high)) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is {}; expected a number from {} to {}", where_,
                   key, value.dump(), low, high);
    }
    return number;
  }

  const nlohmann::json& object_;
  const std::string& where_;
};

}  // namespace kvlathe
