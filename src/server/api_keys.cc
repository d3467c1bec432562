#include "server/api_keys.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace kvlathe::server {

namespace {

// Compares all of both, whatever the first difference.
bool AreEqual(std::string_view key, std::string_view given) {
  size_t difference = key.size() ^ given.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char of_key = key[i % key.size()];
    difference |= static_cast<unsigned char>(of_key ^ given[i]);
  }
  return difference == 0;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Whether it is "Bearer " in any case, as RFC 9110 wants schemes to be read.
bool IsBearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  return std::ranges::equal(scheme, kBearer, [](unsigned char c, unsigned char expected) {
    return std::tolower(c) == expected;
  });
}

std::string_view GivenKey(const http::Request& request) {
  constexpr size_t kSchemeSize = 7;
  const std::string_view authorization = request.Header("authorization");
  if (IsBearer(authorization.substr(0, kSchemeSize))) {
    return Trimmed(authorization.substr(kSchemeSize));
  }
  return request.Header("x-api-key");
}

}  // namespace

bool ApiKeys::Allow(const http::Request& request) const {
  if (keys_.empty()) return true;
  const std::string_view given = GivenKey(request);
  bool is_allowed = false;
  for (const std::string& key : keys_) is_allowed |= AreEqual(key, given);
  return is_allowed;
}

std::string ApiKeys::KeyOf(const http::Request& request) const {
  return keys_.empty() ? std::string() : std::string(GivenKey(request));
}

StatusOr<std::vector<std::string>> ParseApiKeys(std::string_view text, std::string_view name) {
  std::vector<std::string> keys;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view key = Trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (key.empty() || key.front() == '#') continue;
    const auto is_wrong = [](unsigned char c) { return c <= ' ' || c > '~'; };
    if (std::ranges::any_of(key, is_wrong)) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: API key {} has a blank or a character outside ASCII; no client can send it",
                   name, keys.size() + 1);
    }
    keys.emplace_back(key);
  }
  if (keys.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: no API key in it; give one a line, or leave the option out", name);
  }
  return keys;
}

}  // namespace kvlathe::server
