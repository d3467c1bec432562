#include "server/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

namespace kvlathe::server {

namespace {

std::string UtcNow() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     milliseconds.count());
}

double Milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

}  // namespace

void RequestLog::Write(std::string_view event, const nlohmann::ordered_json& fields) const {
  if (!sink_) return;
  nlohmann::ordered_json line = {{"time", UtcNow()}, {"event", event}};
  line.update(fields);
  sink_(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void RequestLog::LogEnded(const api::RequestEnded& ended) const {
  nlohmann::ordered_json fields = {{"request_id", ended.request_id},
                                   {"route", ended.route},
                                   {"status", ended.http_status},
                                   {"ms", Milliseconds(ended.seconds)}};
  if (!ended.level.empty()) {
    fields.update(nlohmann::ordered_json{
        {"kv", ended.level},
        {"stream", ended.is_stream},
        {"choices", ended.n_choices},
        {"prompt_tokens", ended.prompt_tokens},
        {"cached_tokens", ended.cached_tokens},
        {"output_tokens", ended.output_tokens},
        {"pressed_tokens", ended.pressed_tokens},
        {"drafted_tokens", ended.drafted_tokens},
        {"accepted_tokens", ended.accepted_tokens},
        {"finish_reason", ended.finish_reason},
        {"ttft_ms", Milliseconds(ended.first_token_seconds)},
    });
  }
  if (!ended.unknown_fields.empty()) fields["unknown_fields"] = ended.unknown_fields;
  if (!ended.error_message.empty()) {
    fields["error"] = ended.error_message;
    if (!ended.error_code.empty()) fields["code"] = ended.error_code;
  }
  Write("request", fields);
}

void RequestLog::LogRefused(const http::Request& request, int status, std::string_view why) const {
  Write("refused", {{"request_id", request.id},
                    {"method", request.method},
                    {"path", request.path.substr(0, 200)},
                    {"status", status},
                    {"why", why}});
}

void RequestLog::LogTokens(const LoggedAnswer& answer) const {
  Write(kAnswerEvent, ToJson(answer));
}

void RequestLog::LogBody(const http::Request& request) const {
  Write("body", {{"request_id", request.id}, {"path", request.path}, {"body", request.body}});
}

}  // namespace kvlathe::server
