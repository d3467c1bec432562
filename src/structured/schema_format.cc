#include "structured/schema_format.h"

#include <string>
#include <utility>

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// White space in a row that generated JSON may have: indentation, but no loop.
constexpr int kMaxSpaces = 24;

// Strings of bounded length by a pattern: XGrammar's own bounds of length let control characters
// pass, which JSON does not have in strings, and its patterns do not. Surrogates are no characters:
// a client would see three for each.
void BoundByPattern(Json* schema, bool names_schemas = false) {
  if (schema->is_array()) {
    for (Json& inner : *schema) BoundByPattern(&inner);
  }
  if (!schema->is_object()) return;
  const auto is_number = [&](const char* key) {
    return schema->contains(key) && (*schema)[key].is_number();
  };
  const bool is_bounded = is_number("minLength") || is_number("maxLength");
  if (!names_schemas && is_bounded && !schema->contains("pattern") && !schema->contains("format")) {
    const std::string least = is_number("minLength") ? (*schema)["minLength"].dump() : "0";
    const std::string most = is_number("maxLength") ? (*schema)["maxLength"].dump() : "";
    schema->erase("minLength");
    schema->erase("maxLength");
    (*schema)["pattern"] = "^[^\\uD800-\\uDFFF]{" + least + "," + most + "}$";
  }
  for (auto& [key, inner] : schema->items()) {
    const bool is_value = key == "enum" || key == "const" || key == "default" || key == "examples";
    if (is_value && !names_schemas) continue;
    const bool are_named =
        key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
    BoundByPattern(&inner, are_named && !names_schemas);
  }
}

}  // namespace

Json FormatOfSchema(Json schema) {
  BoundByPattern(&schema);
  return {{"type", "json_schema"},
          {"json_schema", std::move(schema)},
          {"max_whitespace_cnt", kMaxSpaces}};
}

}  // namespace kvlathe
