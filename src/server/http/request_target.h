// The target of a request looks like "/v1/models?limit=2", "http://host:8080/v1/models" or "*".
#pragma once

#include <string>
#include <string_view>

namespace kvlathe::http {

struct Target {
  std::string path;   // "/v1/models", or "*"
  std::string query;  // "limit=2"
};

// False, with a message: it is none of these forms, or holds what no target may hold.
bool ParseTarget(std::string_view method, std::string_view text, Target* target,
                 std::string* message);

// Whether `host` may stand in a header Host: a name, an address, perhaps a port.
bool IsHost(std::string_view host);

}  // namespace kvlathe::http
