// Calls in the syntax of a chat template, as formats of XGrammar's structural tags.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "chat/reading/answer_format.h"

namespace kvlathe {

// {"type": "tag", ...} of a call of the tool `name`: arguments in the order of the schema, those
// that it does not require left out or not. `parameters` is a schema that CheckSchema lets pass, or
// null for any object. kUnimplemented: arguments that are no JSON, by a schema that is no object
// with properties. `is_last`: no call follows.
StatusOr<nlohmann::ordered_json> CallTag(const CallFormat& format, const std::string& name,
                                         const nlohmann::ordered_json& parameters, bool is_last);

// What stands right in front of the arguments of a tool, up to their first byte. Nothing: they are
// no JSON, or the text does not tell whose they are.
std::optional<std::string> FrontOfArguments(const CallFormat& format, const std::string& name);

// The end of a tag behind the last call: a control token at the end of `text`, which may end the
// answer by itself, may be absent.
nlohmann::ordered_json EndsOfCalls(const std::string& text);

nlohmann::ordered_json ConstText(const std::string& text);
nlohmann::ordered_json SequenceOf(nlohmann::ordered_json elements);  // a list of at least one

}  // namespace kvlathe
