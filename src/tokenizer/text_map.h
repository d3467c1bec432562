// A TextMap is a hash map from texts that is searched by std::string_view without a copy. Debian's
// Abseil has a string_view type of its own, so its default functors do not take the standard one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace kvlathe {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <typename Value>
using TextMap = absl::flat_hash_map<std::string, Value, TextHash, std::equal_to<>>;

}  // namespace kvlathe
