#include "hub/hub_options.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cstdlib>

#include "io/files.h"

namespace kvlathe {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// ~/.cache/huggingface, or where the environment says; empty where there is no home.
std::string HubHome() {
  if (std::string home = Variable("HF_HOME"); !home.empty()) return home;
  if (const std::string xdg = Variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/huggingface";
  const std::string home = Variable("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

bool IsTrue(const std::string& value) {
  const std::string upper = absl::AsciiStrToUpper(value);
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

// What is written into a line of HTTP must not end it.
bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

StatusOr<std::string> FindToken(const std::string& home) {
  std::string source = "HF_TOKEN", token = Variable("HF_TOKEN");
  if (token.empty()) {
    source = Variable("HF_TOKEN_PATH");
    if (source.empty() && !home.empty()) source = home + "/token";
    if (source.empty() || !FileExists(source)) return std::string();
    KVL_ASSIGN_OR_RETURN(token, ReadTextFile(source, /*max_bytes=*/1 << 16));
  }
  absl::StripAsciiWhitespace(&token);
  if (IsPrintable(token)) return token;
  return Error(StatusCode::kInvalidArgument,
               "{}: a token has no spaces, line ends or characters beyond ASCII", source);
}

}  // namespace

StatusOr<HubOptions> HubOptionsFromEnvironment() {
  HubOptions options;
  if (std::string endpoint = Variable("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    const bool is_url = endpoint.starts_with("https://") || endpoint.starts_with("http://");
    if (!is_url || !IsPrintable(endpoint) || endpoint.find('@') != std::string::npos) {
      return Error(StatusCode::kInvalidArgument,
                   "HF_ENDPOINT is not the address of a hub, such as https://huggingface.co");
    }
    options.endpoint = std::move(endpoint);
  }
  const std::string home = HubHome();
  options.cache_folder = Variable("HF_HUB_CACHE");
  if (options.cache_folder.empty()) {
    if (home.empty()) {
      return Error(StatusCode::kInvalidArgument,
                   "there is no place for models from a hub: set HF_HUB_CACHE, HF_HOME or HOME");
    }
    options.cache_folder = home + "/hub";
  }
  while (options.cache_folder.size() > 1 && options.cache_folder.ends_with('/')) {
    options.cache_folder.pop_back();
  }
  KVL_ASSIGN_OR_RETURN(options.token, FindToken(home));
  options.is_offline = IsTrue(Variable("HF_HUB_OFFLINE"));
  return options;
}

}  // namespace kvlathe
