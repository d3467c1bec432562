#include "structured/schema_format.h"

#include <utility>

namespace kvlathe {
namespace {

// White space in a row that generated JSON may have: indentation, but no loop.
constexpr int kMaxSpaces = 24;

}  // namespace

StatusOr<nlohmann::ordered_json> FormatOfSchema(const nlohmann::ordered_json& schema,
                                                TextRules rules) {
  KVL_ASSIGN_OR_RETURN(nlohmann::ordered_json for_grammar, SchemaForGrammar(schema, rules));
  return nlohmann::ordered_json{{"type", "json_schema"},
                                {"json_schema", std::move(for_grammar)},
                                {"max_whitespace_cnt", kMaxSpaces}};
}

}  // namespace kvlathe
