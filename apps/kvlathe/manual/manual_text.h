// What the page of the command has that does not follow from its verbs and options.
#pragma once

#include <string_view>

namespace kvlathe {

// Sections in the macros of man(7): before the verbs, and behind the methods.
extern const std::string_view kManualDescription;
extern const std::string_view kManualEnding;

}  // namespace kvlathe
