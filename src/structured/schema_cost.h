// The cost of a JSON schema is what it takes to compile it into a grammar.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvlathe {

// An estimate from above, in states of the grammar that are held against the whole vocabulary: 4 ms
// each with 49,152 tokens. A bounded string has one for each of its characters (beyond 128 XGrammar
// counts, in time that grows with the square), a pattern for its length and repetitions; both only
// of property names unless `texts_in_grammar`. The schema nests no deeper than CheckSchema lets it.
int64_t SchemaCost(const nlohmann::ordered_json& schema, bool texts_in_grammar);

// The largest number in {m,n} of a pattern, several multiplied as if each were in the other;
// `at_most` + 1 where that is more than `at_most`.
int64_t PatternRepetition(std::string_view pattern, int64_t at_most);

// Whether a pattern repeats (*, + or {m,n}) a group in which something is repeated or optional, as
// (a*b)+ does. Automata of such patterns can grow with a power of their length, and texts can be
// read in so many ways that one token takes minutes.
bool HasNestedRepetition(std::string_view pattern);

}  // namespace kvlathe
