// A command line that is not understood may have meant something that is near to it.
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

// What an option of llama.cpp or vLLM is called here, as the end of a sentence that begins with the
// option; none if it is no such option.
std::optional<std::string_view> NameHere(std::string_view option);

}  // namespace kvlathe
