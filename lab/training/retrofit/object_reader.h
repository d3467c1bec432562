// An ObjectReader reads the JSON objects of recipes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvlathe {

// Reads the keys of one JSON object and refuses what nobody asked for.
class ObjectReader {
 public:
  ObjectReader(const nlohmann::json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  void Number(const char* key, double low, double high, double* value) {
    if (const nlohmann::json* found = Find(key)) {
      if (!found->is_number() || !(found->get<double>() >= low && found->get<double>() <= high)) {
        Fail(key, fmt::format("a number from {} to {}", low, high));
        return;
      }
      *value = found->get<double>();
    }
  }
  template <typename Int>
  void Integer(const char* key, int64_t low, int64_t high, Int* value) {
    if (const nlohmann::json* found = Find(key)) {
      // Unsigned numbers above INT64_MAX would wrap in get<int64_t>.
      const bool fits = found->is_number_integer() &&
                        !(found->is_number_unsigned() &&
                          found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) &&
                        found->get<int64_t>() >= low && found->get<int64_t>() <= high;
      if (!fits) {
        Fail(key, fmt::format("a whole number from {} to {}", low, high));
        return;
      }
      *value = static_cast<Int>(found->get<int64_t>());
    }
  }
  void Flag(const char* key, bool* value) {
    if (const nlohmann::json* found = Find(key)) {
      if (!found->is_boolean()) return Fail(key, "true or false");
      *value = found->get<bool>();
    }
  }
  void Text(const char* key, std::string* value) {
    if (const nlohmann::json* found = Find(key)) {
      if (!found->is_string()) return Fail(key, "a string");
      *value = found->get<std::string>();
    }
  }
  const nlohmann::json* Object(const char* key) {
    return OfKind(key, nlohmann::json::value_t::object, "an object");
  }
  const nlohmann::json* Array(const char* key) {
    return OfKind(key, nlohmann::json::value_t::array, "an array");
  }
  void Fail(const std::string& key, const std::string& wanted) {
    if (status_.ok()) {
      status_ = Error(StatusCode::kInvalidArgument, "{}: \"{}\" must be {}", where_, key, wanted);
    }
  }
  // The first error, or an unknown key.
  Status Finish() {
    for (const auto& [key, value] : json_.items()) {
      if (!known_.contains(key) && status_.ok()) {
        status_ = Error(StatusCode::kInvalidArgument, "{}: unknown key \"{}\"", where_, key);
      }
    }
    return status_;
  }

 private:
  const nlohmann::json* Find(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  const nlohmann::json* OfKind(const char* key, nlohmann::json::value_t kind, const char* wanted) {
    const nlohmann::json* found = Find(key);
    if (found != nullptr && found->type() != kind) {
      Fail(key, wanted);
      return nullptr;
    }
    return found;
  }

  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> known_;
  Status status_;
};

}  // namespace kvlathe
