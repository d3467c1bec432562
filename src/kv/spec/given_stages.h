// A given spec is one as it was typed. The parser makes it of the text, and the resolver makes
// stages of it.
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
  size_t offset;  // where its name stands in the text, or that of the preset from which it came
  std::vector<GivenKey> keys;

  const GivenKey* Find(std::string_view key_name) const {
    const auto it =
        std::ranges::find_if(keys, [&](const GivenKey& key) { return key.info->name == key_name; });
    return it == keys.end() ? nullptr : &*it;
  }
  // Whether a key says how far the stage compresses, or asks for that. A word (budget=prompt) does
  // not: it says how to read another key.
  bool HasAlternative() const {
    return std::ranges::any_of(keys, [](const GivenKey& key) {
      return key.info->excludes_others && key.value.word.empty();
    });
  }
};

// Quotes a spec for a message: the result is printable and short whatever the text is.
std::string QuoteSpec(std::string_view text);

template <typename... Args>
Status SpecErrorAt(std::string_view text, size_t offset, fmt::format_string<Args...> format,
                   Args&&... args) {
  return Error(StatusCode::kInvalidArgument, "--kv {}: position {}: {}", QuoteSpec(text),
               offset + 1, fmt::format(format, std::forward<Args>(args)...));
}

// Reads the stages as they were typed, presets among them. `text` is not "none".
StatusOr<std::vector<GivenStage>> ParseGivenStages(std::string_view text);

// Expands presets, refuses stages and keys that exclude each other, fills in defaults, and returns
// the stages in the order of axes. If there is a `question`, every stage that could take `accuracy`
// and says nothing about how far it compresses takes the question as its accuracy.
StatusOr<std::vector<Stage>> ResolveStages(std::string_view text, std::vector<GivenStage> given,
                                           std::optional<double> question);

}  // namespace kvlathe
