#include "hub/hub_model.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cstdint>

namespace kvlathe {
namespace {

constexpr size_t kLongestName = 96;  // a hub's own bound
constexpr size_t kLongestPath = 1024, kLongestPart = 255;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

bool IsRepositoryName(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), IsNameCharacter) && name.front() != '.' &&
         name.front() != '-' && name.find("..") == std::string_view::npos &&
         name.find("--") == std::string_view::npos;
}

bool IsSafePart(std::string_view part) {
  return !part.empty() && part.size() <= kLongestPart && part != "." && part != "..";
}

}  // namespace

StatusOr<HubModel> ParseHubModel(std::string_view text) {
  const std::string_view rest = text.substr(std::min<size_t>(text.size(), 3));
  const size_t colon = std::min(rest.find(':'), rest.size());
  const std::string_view repository = rest.substr(0, colon);
  const size_t slash = std::min(repository.find('/'), repository.size());
  HubModel model;
  model.owner = repository.substr(0, slash);
  model.name = slash < repository.size() ? repository.substr(slash + 1) : "";
  if (!NamesHubModel(text) || !IsRepositoryName(model.owner) || !IsRepositoryName(model.name)) {
    return Error(StatusCode::kInvalidArgument,
                 "{} names no model of a hub; give hf:OWNER/NAME or hf:OWNER/NAME:FILE",
                 Quoted(text));
  }
  if (colon == rest.size()) return model;
  model.file = rest.substr(colon + 1);
  if (!IsSafePath(model.file)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: {} names no file of a repository; give hf:OWNER/NAME:FILE.gguf", Quoted(text),
                 Quoted(model.file));
  }
  return model;
}

bool IsSafePath(std::string_view path) {
  if (path.empty() || path.size() > kLongestPath) return false;
  for (size_t i = 0; i < path.size(); ++i) {
    const auto c = static_cast<uint8_t>(path[i]);
    const auto next = static_cast<uint8_t>(i + 1 < path.size() ? path[i + 1] : 0);
    // Control characters, those of Unicode (U+0080 to U+009F) among them, write to terminals.
    const bool is_control = c < ' ' || c == 0x7F || (c == 0xC2 && next < 0xA0);
    if (is_control || c == '\\') return false;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (!IsSafePart(path.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

bool IsSafeWord(std::string_view word) {
  return !word.empty() && word.size() <= 128 && word.front() != '.' &&
         std::all_of(word.begin(), word.end(), IsNameCharacter);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string quoted = "'";
  for (const char c : text.substr(0, kLongest)) {
    quoted += absl::ascii_isprint(c) ? c : '?';
  }
  return quoted + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace kvlathe
