// A request to /v1/responses has these fields: instructions, input items, tools and the form of the
// text.
#pragma once

#include <optional>
#include <string>

#include "server/api/routes/chat_request.h"
#include "server/api/routes/generation_options.h"

namespace kvlathe::api {

struct ResponsesRequest {
  GenerationOptions options;
  ChatTask task;
  TokenizedChat chat;
  int64_t max_tokens = 0;
  bool names_max_tokens = false;  // the request does
  // What the answer repeats, as the request has it.
  Json instructions;
  Json metadata = Json::object();
  Json tools = Json::array();
  Json tool_choice = "auto";
  Json text_format = {{"type", "text"}};
};

// Fields that keep a state on the server (previous_response_id, conversation, background, prompt)
// are refused by name, with what to do; others that are not known are ignored.
StatusOr<ResponsesRequest> ReadResponsesRequest(const ServiceState& state, const Json& json);

}  // namespace kvlathe::api
