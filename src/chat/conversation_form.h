// Messages as clients write them, in the form that a template can take.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "chat/template_traits.h"

namespace kvlathe {

// `messages` is a list with entries of ChatConversation::messages. kInvalidArgument: the arguments
// of a call are no JSON object.
StatusOr<nlohmann::ordered_json> MessagesFor(const TemplateTraits& traits,
                                             const nlohmann::ordered_json& messages);

// A content as one text: itself, or its parts put together.
std::string JoinedText(const nlohmann::ordered_json& content);

// A JSON text from outside that may nest at most 64 deep. kInvalidArgument, beginning with `what`.
StatusOr<nlohmann::ordered_json> ParseShallowJson(std::string_view text, std::string_view what);

}  // namespace kvlathe
