// Tests draw random answers under a constraint, and judge them by a small judge of JSON schemas.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/random.h"
#include "engine/token_constraint.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// The text, as a client sees it, of random tokens that `constraint` lets pass, until it ends with
// one of the ids that `end_id` stands for or nothing but the end may follow; tokens that close
// strings, lists and objects are preferred. Nothing: it was not over after `max_tokens`.
std::optional<std::string> WalkAtRandom(TokenConstraint* constraint, const Tokenizer& tokenizer,
                                        int n_logits, int32_t end_id, int max_tokens,
                                        Random* random);

// Why `value` is not of `schema`; empty: it is. Knows type, enum, const, properties, required,
// additionalProperties, items, minItems, maxItems, minLength, maxLength, minimum, maximum, pattern,
// anyOf and $ref into `root`.
std::string WhyNot(const nlohmann::json& value, const nlohmann::json& schema,
                   const nlohmann::json& root);

}  // namespace kvlathe
