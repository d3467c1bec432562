// The check says whether a JSON schema from outside may become a grammar.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace kvlathe {

// Bounds of one schema. Compiling takes time and memory with the number of states of the grammar,
// which these keep in a few thousand.
struct SchemaLimits {
  int max_bytes = 64 << 10;     // as JSON text
  int max_depth = 32;           // of objects and lists in it
  int max_values = 4096;        // in it, keys of objects not counted
  int max_enum_values = 1000;   // of one enum
  int max_alternatives = 64;    // of one anyOf or oneOf
  int max_pattern_bytes = 256;  // of one pattern
  // Whether the grammar holds patterns and lengths of values too, which otherwise are followed
  // beside it and cost it nothing (TextRules). It always holds those of property names.
  bool texts_in_grammar = false;
  // Repetitions ({m,n} of patterns, minLength, maxItems, ...) of a value inside a repeated value
  // count as a product.
  int max_repetition = 4096;
  // SchemaCost of the schema, and of those of all tools together: about 4 s where there are 49,152
  // tokens, and in proportion.
  int max_cost = 1024;
};

// kInvalidArgument, naming the place in the schema ("schema/properties/a: ..."): it is no schema,
// beyond a limit, refers to nothing, to another document or to itself without a value between, or
// has a keyword that the grammar would not hold (not, if, uniqueItems, keywords beside $ref or
// anyOf, ...). So whatever passes means what it says.
Status CheckSchema(const nlohmann::ordered_json& schema, const SchemaLimits& limits);

}  // namespace kvlathe
