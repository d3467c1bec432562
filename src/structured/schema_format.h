// JSON by a schema, as a format of XGrammar's structural tags.
#pragma once

#include <nlohmann/json.hpp>

namespace kvlathe {

// `schema` is one that CheckSchema lets pass.
nlohmann::ordered_json FormatOfSchema(nlohmann::ordered_json schema);

}  // namespace kvlathe
