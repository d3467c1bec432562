// The page that the server shows at `/`: a chat, and the state of the server beside it. One
// document that asks nothing of any other server.
#pragma once

#include "server/http/http_exchange.h"

namespace kvlathe::server {

// The answer to GET /. It holds nothing of a user's, so no key is asked for it; what the page asks
// for, is.
http::Response PageResponse();

}  // namespace kvlathe::server
