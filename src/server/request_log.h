// The log has one line of JSON for each thing that an operator wants to know of.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "evaluation/audit/answer_log.h"
#include "server/api/api_observer.h"
#include "server/http/http_exchange.h"

namespace kvlathe::server {

// Lines have no text of prompts or answers, unless LogBody or LogTokens is asked for it.
class RequestLog {
 public:
  // Takes a line without its end; called by several threads at the same time. Null: nothing is
  // logged.
  using Sink = std::function<void(const std::string& line)>;

  explicit RequestLog(Sink sink) : sink_(std::move(sink)) {}

  // {"time":"2026-01-31T12:00:00.000Z","event":event} and the fields.
  void Write(std::string_view event, const nlohmann::ordered_json& fields) const;
  void LogEnded(const api::RequestEnded& ended) const;
  void LogRefused(const http::Request& request, int status, std::string_view why) const;
  // The tokens of an answer, which are its text to whoever has the model; `kvlathe audit` reads
  // them (evaluation/audit/answer_log.h).
  void LogTokens(const LoggedAnswer& answer) const;
  // The request as it came.
  void LogBody(const http::Request& request) const;

 private:
  Sink sink_;
};

}  // namespace kvlathe::server
