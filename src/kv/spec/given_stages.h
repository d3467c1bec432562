// A spec as it was typed, between its text and its stages: what the parser hands to the resolver.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/spec/spec.h"

namespace kvlathe {

struct GivenKey {
  const KeyInfo* info;
  SpecValue value;
  size_t offset;  // of the key in the text
};

struct GivenStage {
  const StageInfo* info;
  size_t offset;  // of the name in the text; of the preset that it came from
  std::vector<GivenKey> keys;

  const GivenKey* Find(std::string_view key_name) const {
    const auto it =
        std::ranges::find_if(keys, [&](const GivenKey& key) { return key.info->name == key_name; });
    return it == keys.end() ? nullptr : &*it;
  }
  // Whether it says how far it compresses, or asks. A word (budget=prompt) says how to read another
  // key.
  bool HasAlternative() const {
    return std::ranges::any_of(keys, [](const GivenKey& key) {
      return key.info->excludes_others && key.value.word.empty();
    });
  }
};

// Printable and short, whatever the input was.
std::string QuoteSpec(std::string_view text);

template <typename... Args>
Status SpecErrorAt(std::string_view text, size_t offset, fmt::format_string<Args...> format,
                   Args&&... args) {
  return Error(StatusCode::kInvalidArgument, "--kv {}: position {}: {}", QuoteSpec(text),
               offset + 1, fmt::format(format, std::forward<Args>(args)...));
}

// Stages as they were typed, presets among them. `text` is not "none".
StatusOr<std::vector<GivenStage>> ParseGivenStages(std::string_view text);

// Presets expanded, what excludes each other refused, defaults filled in; in the order of axes.
// Every stage that could take `accuracy` and says nothing about how far it compresses takes
// `question`, if there is one.
StatusOr<std::vector<Stage>> ResolveStages(std::string_view text, std::vector<GivenStage> given,
                                           std::optional<double> question);

}  // namespace kvlathe
