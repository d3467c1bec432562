#include "server/api/api_error.h"

#include "absl/strings/cord.h"
#include "server/api/api_service.h"

namespace kvlathe::api {
namespace {

constexpr char kParamPayload[] = "kvlathe/param";
constexpr char kCodePayload[] = "kvlathe/code";

Status WithPayload(Status status, const char* name, std::string_view text) {
  if (!status.ok() && !status.GetPayload(name))
    status.SetPayload(name, absl::Cord(std::string(text)));
  return status;
}

std::string PayloadOf(const Status& status, const char* name) {
  const auto payload = status.GetPayload(name);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

Status WithParam(Status status, std::string_view param) {
  return WithPayload(std::move(status), kParamPayload, param);
}

Status WithErrorCode(Status status, std::string_view code) {
  return WithPayload(std::move(status), kCodePayload, code);
}

ApiError ApiErrorOf(const Status& status, bool is_refusal) {
  ApiError error;
  error.message = MessageOf(status);
  error.param = PayloadOf(status, kParamPayload);
  const auto set = [&](int http_status, const char* type, const char* code) {
    error.http_status = http_status;
    error.type = type;
    error.code = code;
  };
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      set(400, "invalid_request_error", "");
      break;
    case StatusCode::kUnimplemented:
      set(400, "invalid_request_error", "unsupported_parameter");
      break;
    case StatusCode::kNotFound:
      set(404, "invalid_request_error", "not_found");
      break;
    case StatusCode::kResourceExhausted:
      if (is_refusal) {
        set(400, "invalid_request_error", "kv_memory_exceeded");
      } else {
        set(503, "unavailable_error", "out_of_memory");
      }
      break;
    case StatusCode::kUnavailable:
      set(429, "rate_limit_error", "queue_full");
      break;
    case StatusCode::kCancelled:
      set(503, "unavailable_error", "shutting_down");
      break;
    default:
      set(500, "server_error", "engine_error");
  }
  if (std::string code = PayloadOf(status, kCodePayload); !code.empty()) error.code = code;
  return error;
}

Json ErrorJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

http::Response ErrorResponse(const ApiError& error) {
  http::Response response;
  response.status = error.http_status;
  response.body = Dump(ErrorJson(error));
  // A place in the queue is free as soon as one request ends.
  if (error.http_status == 429) response.headers.emplace_back("Retry-After", "1");
  return response;
}

http::Response ErrorResponse(int http_status, const std::string& type, const std::string& code,
                             const std::string& message, const std::string& param) {
  return ErrorResponse(ApiError{http_status, type, code, param, message});
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvlathe::api
