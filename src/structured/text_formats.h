// The formats of texts that JSON schemas name, as patterns.
#pragma once

#include <optional>
#include <string_view>

namespace kvlathe {

// The pattern of a `format`: date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid,
// uri, uri-reference, json-pointer, relative-json-pointer. Nothing: of other formats, which say no
// more than what a text is for.
std::optional<std::string_view> PatternOfFormat(std::string_view format);

}  // namespace kvlathe
