#include "server/page/page.h"

namespace kvlathe::server {
namespace {

// page.html, which the build puts here.
constexpr char kPage[] = {
#include <page_bytes.inc>
};

}  // namespace

http::Response PageResponse() {
  return {.content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
                       "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(kPage, sizeof(kPage))};
}

}  // namespace kvlathe::server
