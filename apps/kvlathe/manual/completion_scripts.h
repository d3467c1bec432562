// The scripts of shells that ask the program what may be typed (completions.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// bash, zsh and fish.
std::vector<std::string> CompletedShells();

// The script for one of them.
std::string_view CompletionScript(std::string_view shell);

}  // namespace kvlathe
