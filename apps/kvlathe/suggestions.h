// A command line that is not understood may have meant something that is near to it.
#pragma once

#include <optional>
#include <string_view>

namespace kvlathe {

// What an option of llama.cpp or vLLM is called here, as the end of a sentence that begins with the
// option; none if it is no such option.
std::optional<std::string_view> NameHere(std::string_view option);

}  // namespace kvlathe
