// Requests of Ollama's API become what the routes of OpenAI's API read.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/routes/chat_request.h"
#include "server/api/routes/generation_options.h"

namespace kvlathe::api {

struct OllamaRequest {
  GenerationOptions options;
  TokenizedChat chat;
  int64_t max_tokens = 0;
  bool is_infill = false;   // of two texts
  bool only_loads = false;  // nothing is asked: the model is to be there
};

// Of /api/chat: messages, tools, format, options, think, stream.
StatusOr<OllamaRequest> ReadOllamaChat(const ServiceState& state, const Json& json);
// Of /api/generate: prompt, suffix, system, raw, format, options, think, stream.
StatusOr<OllamaRequest> ReadOllamaGenerate(const ServiceState& state, const Json& json);

// A model's name as Ollama's clients write it, with or without ":latest", as this server knows it.
std::string OllamaModelName(const ServiceState& state, std::string name);

}  // namespace kvlathe::api
