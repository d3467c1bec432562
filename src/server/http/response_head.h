// An answer begins with a status line and headers.
#pragma once

#include <string>

#include "server/http/http_exchange.h"

namespace kvlathe::http {

// What an answer depends on beside what the handler says.
struct AnswerFacts {
  std::string request_id;
  bool is_head = false;      // of a request with HEAD, whose answer has no body
  bool is_http_1_0 = false;  // of a client that does not know chunks
  std::string cors_origin;   // of the page that may read the answer; empty: none
};

// With Content-Length (but for the statuses that have no body), Content-Type, X-Request-Id, Date,
// Connection where it says something, and response.headers. A line break in a header becomes a
// space.
std::string ResponseHead(const Response& response, const AnswerFacts& facts, bool keep_alive);

// Of a stream: chunked, but for a client of HTTP/1.0, whose connection must end behind it
// (keep_alive is false).
std::string StreamHead(StreamKind kind, const AnswerFacts& facts, bool keep_alive);

// Whether a response with this status has no body (1xx, 204, 304).
bool HasNoBody(int status);

}  // namespace kvlathe::http
