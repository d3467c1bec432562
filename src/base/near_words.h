// A name that is not known may have meant one that is near to it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// The candidate with the fewest inserted, left out, changed or swapped characters, if these are few
// for its length.
std::optional<std::string> NearestOf(std::string_view word,
                                     const std::vector<std::string>& candidates);

// At most so many candidates that are near, and such that begin with `word` or with which it
// begins; the nearest first.
std::vector<std::string> NearWords(std::string_view word,
                                   const std::vector<std::string>& candidates, size_t most);

}  // namespace kvlathe
