// JSON as Python's json.dumps writes it, which is what the filter tojson of Hugging Face's chat
// templates does.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// As json.dumps(value, ensure_ascii=False) with indent=n_indent; 0: all on one line. Integers
// beyond 64 bits were read as doubles before and are written as such.
std::string PythonJson(const nlohmann::ordered_json& value, int n_indent = 0);

// A JSON text from outside that may nest at most 64 deep. kInvalidArgument, beginning with `what`.
StatusOr<nlohmann::ordered_json> ParseShallowJson(std::string_view text, std::string_view what);

}  // namespace kvlathe
