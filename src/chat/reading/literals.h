// Values of arguments that are no JSON: literals of Python, and objects whose keys have no quotes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlathe {

// The JSON of a literal: 'text' or "text", or what stands between two `quote` where that is not
// empty; True, None, true, null, numbers, lists and dictionaries of them, whose keys may be words
// without quotes. Empty for anything else.
std::string JsonOfLiteral(std::string_view literal, std::string_view quote = {});

// Where the first byte of `stops` stands that is in no quotes and in no brackets that began in
// `text`; npos: not in this text.
size_t EndOfLiteral(std::string_view text, std::string_view stops, std::string_view quote = {});

}  // namespace kvlathe
