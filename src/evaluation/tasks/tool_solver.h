// Tests solve the task "tools" from its prompt alone.
#pragma once

#include <set>
#include <string>

namespace kvlathe {

// The call that the request at the end of the prompt asks for, with a space before it; nothing
// where the prompt's schemas do not allow it.
std::set<std::string> SolveTools(const std::string& prompt);

}  // namespace kvlathe
