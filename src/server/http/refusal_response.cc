#include "server/http/refusal_response.h"

#include <nlohmann/json.hpp>

namespace kvlathe::http {

namespace {

struct Kind {
  int status;
  const char* type;
  const char* code;
};

constexpr Kind kKinds[] = {
    {400, "invalid_request_error", "malformed_request"},
    {408, "invalid_request_error", "request_timeout"},
    {413, "invalid_request_error", "body_too_large"},
    {414, "invalid_request_error", "target_too_long"},
    {417, "invalid_request_error", "expectation_failed"},
    {431, "invalid_request_error", "headers_too_large"},
    {501, "not_supported_error", "not_supported"},
    {503, "unavailable_error", "overloaded"},
    {505, "not_supported_error", "http_version_not_supported"},
};

constexpr Kind kOther = {500, "server_error", "internal_error"};

}  // namespace

Response RefusalResponse(int status, const std::string& message) {
  Kind kind = kOther;
  for (const Kind& candidate : kKinds) {
    if (candidate.status == status) kind = candidate;
  }
  Response response;
  response.status = kind.status;
  response.body =
      nlohmann::json{
          {"error",
           {{"message", message}, {"type", kind.type}, {"param", nullptr}, {"code", kind.code}}}}
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (kind.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace kvlathe::http
