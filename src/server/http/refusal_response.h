// The server refuses what it cannot hand to the handler with the error object of OpenAI's API.
#pragma once

#include <string>

#include "server/http/http_exchange.h"

namespace kvlathe::http {

// {"error": {"message", "type", "param": null, "code"}}; type and code follow from the status,
// which is one that this server refuses with (400, 408, 413, 414, 417, 431, 500, 501, 503 or 505).
// Refusals with 503 say Retry-After: 1.
Response RefusalResponse(int status, const std::string& message);

}  // namespace kvlathe::http
