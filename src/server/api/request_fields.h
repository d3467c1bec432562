// RequestFields gives typed, bounded access to the fields of a JSON object of a request.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/api/tool_support.h"

namespace kvlathe::api {

// Of one object. The first field that is wrong (of another type, out of its range) is kept as
// status(), and reading goes on, so that callers read all they know and ask once. A field that is
// absent or null is none.
class RequestFields {
 public:
  // `object` is a JSON object and outlives the fields; `path` stands in front of names in messages,
  // as "messages[2]."
  explicit RequestFields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  // Null: absent or null.
  const Json* Find(std::string_view name) const;
  // Takes note of a field that is known and says nothing to this server.
  void Ignore(std::string_view name) { asked_.emplace(name); }
  // The first of the object's fields that nobody has asked for.
  std::vector<std::string> Unasked() const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  // Whole numbers may be written as 5.0. Bounds are inclusive.
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // Null: absent or wrong.
  const Json* Object(std::string_view name);
  const Json* Array(std::string_view name);

  // Sets status(), unless there is one already.
  void Fail(Status status);
  // "messages[2].role"
  std::string PathOf(std::string_view name) const { return path_ + std::string(name); }
  const Status& status() const { return status_; }

 private:
  const Json* Expect(std::string_view name, bool (Json::*is_type)() const noexcept,
                     std::string_view type);

  const Json& object_;
  std::string path_;
  Status status_;
  mutable std::set<std::string, std::less<>> asked_;
};

// "a string", "an array": what a value is, for messages.
std::string_view KindOf(const Json& value);

}  // namespace kvlathe::api
