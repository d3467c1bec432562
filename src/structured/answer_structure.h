// A structure says what an answer must look like, as a "structural tag" of XGrammar: JSON that says
// which texts, free or by a JSON schema, follow each other.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "chat/reading/answer_format.h"
#include "structured/schema_check.h"

namespace kvlathe {

// The key of a structure beside "format": where JSON values stand in the answer, and the schemas by
// which their texts are followed beside the grammar.
inline constexpr const char* kFollowedKey = "followed";

// One JSON value by a schema that CheckSchema lets pass.
StatusOr<nlohmann::ordered_json> JsonBySchema(const nlohmann::ordered_json& schema,
                                              const SchemaLimits& limits = {});
// Any JSON object.
nlohmann::ordered_json AnyJsonObject();

struct CallableTool {
  std::string name;                   // [A-Za-z0-9_-]
  nlohmann::ordered_json parameters;  // a schema of the arguments; null: any object
};

struct CallRules {
  bool must_call = true;       // false: text, in which calls may stand
  bool has_many_calls = true;  // false: at most one
  std::string thoughts_end;    // must_call: what ends thoughts that the prompt began; else empty
};

// Calls of `tools` (at least one) in the syntax of a format: nothing but calls where there must be
// some. kInvalidArgument with the name of the tool whose schema CheckSchema refuses.
StatusOr<nlohmann::ordered_json> ToolCalls(const CallFormat& format,
                                           std::span<const CallableTool> tools,
                                           const CallRules& rules, const SchemaLimits& limits = {});

}  // namespace kvlathe
