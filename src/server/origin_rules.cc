#include "server/origin_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "server/http/cors_origins.h"

namespace kvlathe::server {

namespace {

std::string InLowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// "Example.org:8080" is "example.org", and "[::1]:8080" is "::1".
std::string WithoutPort(std::string_view authority) {
  if (authority.starts_with('[')) {
    const size_t end = std::min(authority.find(']'), authority.size());
    return InLowerCase(authority.substr(1, end - 1));
  }
  return InLowerCase(authority.substr(0, authority.find(':')));
}

bool Holds(const std::vector<std::string>& names, std::string_view wanted) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return name == "*" || InLowerCase(name) == wanted; });
}

// Of the page that the server itself would have sent.
bool IsSameOrigin(std::string_view origin, std::string_view host) {
  const size_t scheme_end = origin.find("://");
  return scheme_end != std::string_view::npos && origin.substr(scheme_end + 3) == host;
}

}  // namespace

bool IsLoopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  const bool is_address =
      std::ranges::all_of(host, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
  return is_address && host.starts_with("127.");
}

OriginRules::OriginRules(OriginOptions options, std::string_view listening_host, bool has_keys)
    : options_(std::move(options)), checks_(!has_keys && IsLoopback(listening_host)) {}

std::optional<std::string> OriginRules::WhyRefused(const http::Request& request) const {
  if (!checks_) return std::nullopt;
  const std::string_view host = request.Header("host");  // HTTP/1.0 may have none, browsers have it
  const std::string name = WithoutPort(host);
  if (!host.empty() && !IsLoopback(name) && !Holds(options_.allowed_hosts, name)) {
    return fmt::format(
        "the server listens on a loopback address and is asked as '{}'; ask it as 127.0.0.1 or "
        "localhost, or start it with --allow-host {} or with --api-key",
        host, name);
  }
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || IsSameOrigin(origin, host) ||
      http::MayRead(options_.cors_origins, origin)) {
    return std::nullopt;
  }
  return fmt::format(
      "a page of {} asks, and the server listens on a loopback address without API keys; start it "
      "with --cors-origin {} where the page may",
      origin, origin);
}

std::optional<http::Response> OriginRules::AnswerPreflight(const http::Request& request) const {
  const std::string_view method = request.Header("access-control-request-method");
  if (request.method != "OPTIONS" || method.empty()) return std::nullopt;
  if (!http::MayRead(options_.cors_origins, request.Header("origin"))) return std::nullopt;
  http::Response response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                      {"Access-Control-Max-Age", "600"}};
  const std::string_view headers = request.Header("access-control-request-headers");
  if (!headers.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", headers);
  return response;
}

}  // namespace kvlathe::server
