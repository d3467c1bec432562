// API keys say who may use the server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http/http_exchange.h"

namespace kvlathe::server {

class ApiKeys {
 public:
  // No keys: everybody may.
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool are_required() const { return !keys_.empty(); }
  // Whether the request carries one of the keys, as `Authorization: Bearer KEY` or as `X-Api-Key:
  // KEY`. The time that it takes says nothing of how much of a key was right.
  bool Allow(const http::Request& request) const;
  // The key that a request carries; empty where none is required.
  std::string KeyOf(const http::Request& request) const;

 private:
  std::vector<std::string> keys_;
};

// A key a line; empty lines and lines that begin with '#' say nothing. kInvalidArgument when there
// is none in `text`, or one with characters that no header can carry; `name` stands in front of the
// message.
StatusOr<std::vector<std::string>> ParseApiKeys(std::string_view text, std::string_view name);

}  // namespace kvlathe::server
