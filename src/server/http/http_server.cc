#include "server/http/http_server.h"

#include <boost/asio/io_context.hpp>
#include <utility>

#include "server/http/server_core.h"

namespace kvlathe::http {

namespace {

Status CheckOptions(const HttpServerOptions& options) {
  const auto out_of_range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    return Error(StatusCode::kInvalidArgument, "HTTP server: {} is {}, not from {} to {}", name,
                 value, low, high);
  };
  struct Range {
    const char* name;
    int64_t value;
    int64_t low;
    int64_t high;
  };
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  constexpr int64_t kMaxMilliseconds = int64_t{24} * 3600 * 1000;
  const Range ranges[] = {
      {"port", options.port, 0, 65535},
      {"n_threads", options.n_threads, 1, 256},
      {"max_header_bytes", options.max_header_bytes, 64, 1 << 24},
      {"max_headers", options.max_headers, 1, 100'000},
      {"max_body_bytes", options.max_body_bytes, 0, kMaxBytes},
      {"max_received_bytes", options.max_received_bytes, 1, kMaxBytes},
      {"max_connections", options.max_connections, 1, 1'000'000},
      {"max_buffered_bytes", options.max_buffered_bytes, 1, kMaxBytes},
      {"header_timeout in ms", options.header_timeout.count(), 1, kMaxMilliseconds},
      {"body_timeout in ms", options.body_timeout.count(), 1, kMaxMilliseconds},
      {"idle_timeout in ms", options.idle_timeout.count(), 1, kMaxMilliseconds},
      {"write_timeout in ms", options.write_timeout.count(), 1, kMaxMilliseconds},
  };
  for (const Range& range : ranges) {
    if (range.value < range.low || range.value > range.high) {
      return out_of_range(range.name, range.value, range.low, range.high);
    }
  }
  return OkStatus();
}

}  // namespace

Status HttpServer::CheckAddress(const std::string& host, int port) {
  boost::asio::io_context io;
  Tcp::acceptor acceptor(io);
  return OpenListener(host, port, &acceptor);
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                        Handler handler) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  auto core = std::make_shared<ServerCore>(options, std::move(handler));
  KVL_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::HttpServer(std::shared_ptr<ServerCore> core) : core_(std::move(core)) {}

HttpServer::~HttpServer() { core_->Stop(std::chrono::milliseconds(0)); }

int HttpServer::port() const { return core_->port(); }

void HttpServer::StopAccepting() { core_->StopAccepting(); }

void HttpServer::Stop(std::chrono::milliseconds at_most) { core_->Stop(at_most); }

int HttpServer::n_connections() const { return core_->n_connections(); }

int HttpServer::n_open_replies() const { return core_->n_open_replies(); }

}  // namespace kvlathe::http
