#include "server/http/response_head.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <string_view>

namespace kvlathe::http {

namespace {

std::string HttpDate() {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr)));
}

// Handlers put words of requests into headers; what would begin another header must not get there.
std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return (c < ' ' && c != '\t') || c == 127; },
      ' ');
  return line;
}

void AppendHeader(std::string_view name, std::string_view value, std::string* head) {
  fmt::format_to(std::back_inserter(*head), "{}: {}\r\n", OneLine(name), OneLine(value));
}

std::string CommonHead(int status, std::string_view content_type, const AnswerFacts& facts,
                       bool keep_alive) {
  namespace beast_http = boost::beast::http;
  const auto reason = beast_http::obsolete_reason(beast_http::int_to_status(status));
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
  AppendHeader("Date", HttpDate(), &head);
  if (!content_type.empty()) AppendHeader("Content-Type", content_type, &head);
  AppendHeader("X-Request-Id", facts.request_id, &head);
  if (!facts.cors_origin.empty()) {
    AppendHeader("Access-Control-Allow-Origin", facts.cors_origin, &head);
    AppendHeader("Access-Control-Expose-Headers", "X-Request-Id, Retry-After", &head);
    AppendHeader("Vary", "Origin", &head);
  }
  if (!keep_alive) AppendHeader("Connection", "close", &head);
  if (keep_alive && facts.is_http_1_0) AppendHeader("Connection", "keep-alive", &head);
  return head;
}

std::string_view TypeOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kEvents:
      return "text/event-stream";
    case StreamKind::kJsonLines:
      return "application/x-ndjson";
    case StreamKind::kBytes:
      break;
  }
  return "application/octet-stream";
}

}  // namespace

bool HasNoBody(int status) { return status < 200 || status == 204 || status == 304; }

std::string ResponseHead(const Response& response, const AnswerFacts& facts, bool keep_alive) {
  const bool has_no_body = HasNoBody(response.status);
  std::string head = CommonHead(
      response.status, has_no_body ? std::string_view() : response.content_type, facts, keep_alive);
  if (!has_no_body) AppendHeader("Content-Length", std::to_string(response.body.size()), &head);
  for (const auto& [name, value] : response.headers) AppendHeader(name, value, &head);
  return head + "\r\n";
}

std::string StreamHead(StreamKind kind, const AnswerFacts& facts, bool keep_alive) {
  std::string head = CommonHead(200, TypeOf(kind), facts, keep_alive);
  AppendHeader("Cache-Control", "no-cache", &head);
  AppendHeader("X-Accel-Buffering", "no", &head);  // nginx would collect the events otherwise
  if (!facts.is_http_1_0) AppendHeader("Transfer-Encoding", "chunked", &head);
  return head + "\r\n";
}

}  // namespace kvlathe::http
