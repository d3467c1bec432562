// The bytes of a body become JSON here, with bounds on what a hostile body may cost.
#pragma once

#include <string_view>

#include "base/status.h"
#include "server/api/tool_support.h"

namespace kvlathe::api {

struct JsonBounds {
  int max_depth = 64;         // of arrays and objects in each other
  int max_values = 1 << 20;   // of all kinds together
  int max_object_keys = 512;  // of one object; ordered objects look keys up one by one
};

// The object that a body holds. kInvalidArgument (with where) for what is not JSON by RFC 8259, is
// no object, passes a bound, has a key twice in one object, or holds bytes that are not UTF-8, a
// surrogate without its other half, NaN, or a number beyond a double. A zero character ("\u0000")
// is a character like any other.
StatusOr<Json> ParseJsonObject(std::string_view body, const JsonBounds& bounds);

}  // namespace kvlathe::api
