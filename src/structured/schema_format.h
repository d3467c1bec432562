// JSON by a schema, as a format of XGrammar's structural tags.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "structured/followed_schema.h"

namespace kvlathe {

// `schema` is one that CheckSchema lets pass. kInvalidArgument: what SchemaForGrammar refuses.
StatusOr<nlohmann::ordered_json> FormatOfSchema(const nlohmann::ordered_json& schema,
                                                TextRules rules);

}  // namespace kvlathe
