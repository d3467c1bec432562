#include "engine/drafts/drafter.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "engine/drafts/ngram_drafter.h"

namespace kvlathe {
namespace {

Status DraftError(std::string_view text, std::string_view why) {
  return Error(StatusCode::kInvalidArgument,
               "{}: {}; write ngram, none, or ngram:tokens=8,min=2,max=4 with tokens from 1 "
               "to {} and 1 <= min <= max <= {}",
               text, why, kMostDrafted, DraftOptions::kLongestMatch);
}

}  // namespace

StatusOr<std::optional<DraftOptions>> DraftOptions::Parse(std::string_view text) {
  if (text == "none") return std::optional<DraftOptions>();
  const std::string_view name = text.substr(0, text.find(':'));
  if (name != "ngram") return DraftError(text, "there is no such method");
  DraftOptions options;
  if (text == name) return std::optional(options);
  bool has_max = false;
  for (std::string_view rest = text.substr(name.size() + 1); !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    int* const value = key == "tokens" ? &options.n_tokens
                       : key == "min"  ? &options.min_match
                       : key == "max"  ? &options.max_match
                                       : nullptr;
    if (value == nullptr) return DraftError(text, "the options are tokens, min and max");
    const char* const end = item.data() + item.size();
    const char* const begin = item.data() + std::min(equals + 1, item.size());
    const auto [read_to, error] = std::from_chars(begin, end, *value);
    if (error != std::errc() || read_to != end || begin == end) {
      return DraftError(text, "an option is a whole number");
    }
    has_max = has_max || key == "max";
    if (item.size() == rest.size()) break;
    rest.remove_prefix(item.size() + 1);
    if (rest.empty()) return DraftError(text, "an option is missing behind the last comma");
  }
  if (text.back() == ':') return DraftError(text, "an option is missing behind the colon");
  if (!has_max) options.max_match = std::max(options.max_match, options.min_match);
  const bool is_allowed = options.n_tokens >= 1 && options.n_tokens <= kMostDrafted &&
                          options.min_match >= 1 && options.min_match <= options.max_match &&
                          options.max_match <= kLongestMatch;
  if (!is_allowed) return DraftError(text, "a number is out of its range");
  return std::optional(options);
}

std::shared_ptr<Drafter> MakeDrafter(const std::optional<DraftOptions>& options) {
  if (!options.has_value()) return nullptr;
  return std::make_shared<NgramDrafter>(*options);
}

}  // namespace kvlathe
