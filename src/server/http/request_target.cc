#include "server/http/request_target.h"

#include <algorithm>
#include <cctype>

namespace kvlathe::http {

namespace {

bool IsAlphanumeric(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Behind "http://" or "https://"; npos for another scheme.
size_t AuthorityBegin(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (text.size() < scheme.size()) continue;
    const bool is_same = std::equal(scheme.begin(), scheme.end(), text.begin(), [](char a, char b) {
      return a == std::tolower(static_cast<unsigned char>(b));
    });
    if (is_same) return scheme.size();
  }
  return std::string_view::npos;
}

}  // namespace

bool IsHost(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return IsAlphanumeric(c) ||
           std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string::npos;
  });
}

bool ParseTarget(std::string_view method, std::string_view text, Target* target,
                 std::string* message) {
  for (const char c : text) {
    if (c <= ' ' || c >= 127 || c == '#') {
      *message = "the request target holds a character that must be percent-encoded";
      return false;
    }
  }
  if (text == "*") {
    if (method == "OPTIONS") {
      *target = {"*", ""};
      return true;
    }
    *message = "the request target '*' is for OPTIONS alone";
    return false;
  }
  if (!text.starts_with('/')) {
    const size_t begin = AuthorityBegin(text);
    if (begin == std::string_view::npos) {
      *message = "the request target is neither a path nor an http URL";
      return false;
    }
    const size_t end = std::min(text.find_first_of("/?", begin), text.size());
    const std::string_view authority = text.substr(begin, end - begin);
    if (authority.empty() || !IsHost(authority)) {
      *message = "the request target names no host";
      return false;
    }
    text.remove_prefix(end);
  }
  const size_t question = std::min(text.find('?'), text.size());
  target->path = text.substr(0, question);
  target->query = text.substr(std::min(question + 1, text.size()));
  if (target->path.empty()) target->path = "/";
  return true;
}

}  // namespace kvlathe::http
