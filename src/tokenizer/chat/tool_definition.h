// How templates print the definition of a tool.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tokenizer/chat/tool_format.h"

namespace kvlathe {

// All definitions with what stands around them: what the template prints of `tools`.
std::string ToolList(const ToolFormat& format, std::span<const nlohmann::ordered_json> tools);

}  // namespace kvlathe
