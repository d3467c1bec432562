// An error of the API is a Status on the way through the code, and OpenAI's error object on the way
// out.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "server/api/tool_support.h"
#include "server/http/http_exchange.h"

namespace kvlathe::api {

struct ApiError {
  int http_status = 500;
  std::string type = "server_error";
  std::string code;   // empty: null
  std::string param;  // the field that is wrong; empty: null
  std::string message;
};

// `status` with the field that it is about, or with the code that clients switch on. A status that
// has one already keeps it.
Status WithParam(Status status, std::string_view param);
Status WithErrorCode(Status status, std::string_view code);

// A wrong field: kInvalidArgument with its name, in the message as well.
template <typename... Args>
Status FieldError(std::string_view param, fmt::format_string<Args...> format, Args&&... args) {
  return WithParam(Error(StatusCode::kInvalidArgument, "{}: {}", param,
                         fmt::format(format, std::forward<Args>(args)...)),
                   param);
}

// A field, or a value of it, that this server has nothing for: kUnimplemented with its name.
inline Status UnsupportedField(const std::string& param, std::string_view why) {
  return WithParam(Error(StatusCode::kUnimplemented, "{}: {}", param, why), param);
}

// What clients are told. Not every status has one answer of its own:
//   kInvalidArgument    400 invalid_request_error
//   kUnimplemented      400 invalid_request_error, unsupported_parameter: clients repeat a 501
//   kNotFound           404 invalid_request_error
//   kResourceExhausted  400 kv_memory_exceeded when a request could never fit (`is_refusal`: the
//                       engine refused it); 503 when it ended so
//   kUnavailable        429 rate_limit_error, queue_full
//   kCancelled          503 unavailable_error, shutting_down: nobody but the server cancels so
//   else                500 server_error
ApiError ApiErrorOf(const Status& status, bool is_refusal);

// {"error":{"message","type","param","code"}}
Json ErrorJson(const ApiError& error);
http::Response ErrorResponse(const ApiError& error);

// One line of JSON. What is not UTF-8 becomes U+FFFD.
std::string Dump(const Json& json);

}  // namespace kvlathe::api
