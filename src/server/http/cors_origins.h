// Pages of these origins may read answers (Cross-Origin Resource Sharing).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kvlathe::http {

// `origins` as "https://chat.example", and "*" for all.
inline bool MayRead(const std::vector<std::string>& origins, std::string_view origin) {
  return !origin.empty() && std::ranges::any_of(origins, [&](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  });
}

}  // namespace kvlathe::http
