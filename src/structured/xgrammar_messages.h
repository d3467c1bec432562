// XGrammar's messages are taken in here, and none is printed.
#pragma once

#include <string>

namespace kvlathe {

// The warnings of the calling thread since the last call, a line each. XGrammar warns where it
// ignores a part of what it is to compile.
std::string TakeXGrammarWarnings();

}  // namespace kvlathe
