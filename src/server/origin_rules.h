// Which pages of a browser may reach the server, and read what it answers.
//
// A server without keys on a loopback address counts on that only programs of this machine reach
// it. A browser is one of these, and runs the pages of others: a page can send requests to
// 127.0.0.1, and a name of its own can be made to mean 127.0.0.1 (DNS rebinding), upon which its
// page reads the answers too. The headers Host and Origin, which a page cannot choose, tell.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_exchange.h"

namespace kvlathe::server {

struct OriginOptions {
  // Names that requests may come to beside localhost, 127.0.0.1 and [::1]; "*": all.
  std::vector<std::string> allowed_hosts;
  // Of pages that may read answers, "https://chat.example"; "*": all.
  std::vector<std::string> cors_origins;
};

class OriginRules {
 public:
  // Checks nothing where the server has keys or listens elsewhere than on loopback.
  OriginRules(OriginOptions options, std::string_view listening_host, bool has_keys);

  // Why a request is refused, for the client; none: it is not.
  std::optional<std::string> WhyRefused(const http::Request& request) const;
  // The answer to what a browser asks before a page's request; none: it is no such question, or of
  // a page that may not ask.
  std::optional<http::Response> AnswerPreflight(const http::Request& request) const;

 private:
  OriginOptions options_;
  bool checks_;
};

// Whether `host` (of --host, or of a header, without a port) means this machine alone.
bool IsLoopback(std::string_view host);

}  // namespace kvlathe::server
