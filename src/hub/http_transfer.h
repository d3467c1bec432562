// One request and its answer over HTTP or HTTPS. Proxies are those of the environment (https_proxy,
// no_proxy), certificates those of certificates.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

struct HttpRequest {
  std::string url;
  bool is_head = false;    // HEAD; else GET
  std::string token;       // of a bearer; empty: none
  int64_t first_byte = 0;  // by Range; 0: all bytes
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case

  // The value of a header, or empty. `name` is in lower case.
  std::string_view Header(std::string_view name) const {
    const auto header = headers.find(name);
    return header == headers.end() ? std::string_view() : std::string_view(header->second);
  }
};

// Takes a body. An error of either function ends the transfer and is what the transfer returns.
struct BodySink {
  // Before the first byte. False: the body is not wanted, and the transfer ends with its answer.
  std::function<StatusOr<bool>(const HttpAnswer&)> begin;
  std::function<Status(std::string_view)> write;
};

// Requests one after another, on the same connection where the server allows it.
class HttpTransfer {
 public:
  HttpTransfer(int connect_seconds, int stall_seconds);
  ~HttpTransfer();
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  // An answer of any status; redirects are not followed. kUnavailable: the host cannot be reached.
  // kAborted: the connection ended before the answer did. kDeadlineExceeded: nothing came for
  // stall_seconds. These messages name the host and the cause.
  StatusOr<HttpAnswer> Run(const HttpRequest& request, const BodySink& sink);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The host of a URL, with its port where it names one: for messages.
std::string HostOf(std::string_view url);
// Scheme, host and port are the same, which the scheme gives where a URL names none.
bool HaveSameOrigin(const std::string& a, const std::string& b);
// Where a Location header leads from a URL; empty for what is no address of HTTP.
std::string ResolveUrl(const std::string& url, const std::string& location);
// Every byte that is not safe in the path of a URL as %XX; slashes stay.
std::string EncodePath(std::string_view path);

}  // namespace kvlathe
