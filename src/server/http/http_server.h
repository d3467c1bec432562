// The HTTP/1.1 server listens, reads whole requests within fixed limits, hands each to one handler
// and writes what comes back. A few threads serve all connections, however many of them are slow;
// no thread waits for a client (docs/decisions/http-library.md).
//
// What is not a request as RFC 9110 and RFC 9112 have it never reaches the handler: the server
// answers it itself, with an object {"error": {"message", "type", "param", "code"}} as OpenAI's
// API has, and closes the connection. docs/server.md lists the statuses.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http/http_exchange.h"

namespace kvlathe::http {

// A request that the server answered itself, for logs and counters.
struct Refusal {
  std::string id;    // what the answer's X-Request-Id says
  std::string peer;  // as Request::peer
  int status = 0;
  std::string message;
};

struct HttpServerOptions {
  // An address of IPv4 or IPv6, or a name, of which the first address is taken.
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one, see HttpServer::port
  int n_threads = 2;

  // Of one request. The head is the request line and the header lines with their line ends.
  int64_t max_header_bytes = 32 << 10;
  int max_headers = 100;
  int64_t max_body_bytes = 16 << 20;
  // Of all requests that are being received at this moment; what would go beyond is answered 503.
  int64_t max_received_bytes = 256 << 20;
  // What comes beyond is answered 503 with Retry-After, and its connection is closed.
  int max_connections = 2048;
  // Of one reply: what it was given and the operating system has not yet taken. A client that lets
  // more wait is dropped.
  int64_t max_buffered_bytes = 4 << 20;

  // From the first byte of a request to the end of its head, and from there to the end of its body.
  // Late ones are answered 408. A connection must also begin its first request within
  // header_timeout.
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{120'000};
  // How long a connection may stay open between two requests.
  std::chrono::milliseconds idle_timeout{75'000};
  // How long bytes may wait without the client taking a single one; it is dropped after one to two
  // of these.
  std::chrono::milliseconds write_timeout{30'000};

  // Pages of these origins may read answers: "https://chat.example"; "*": all.
  std::vector<std::string> cors_origins;

  // Called on a thread of the server after each refusal; must not block. May be empty.
  std::function<void(const Refusal&)> on_refusal;
};

class ServerCore;

class HttpServer {
 public:
  // Called on a thread of the server, and must not block: what takes longer than writing down the
  // request belongs to Reply::Post or to another thread. Requests of one connection come one after
  // another, each when the answer before it is complete. A reply that is destroyed without an
  // answer is answered 500.
  using Handler = std::function<void(Request, std::shared_ptr<Reply>)>;

  // Whether Start could listen at the address now: for whoever has much to do before it. Errors as
  // of Start.
  static Status CheckAddress(const std::string& host, int port);
  // kInvalidArgument: options outside their ranges, or a host that is not known; kInternal: the
  // address cannot be listened on (it is in use, for instance).
  static StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                     Handler handler);
  ~HttpServer();  // Stop, without waiting
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

  // Closes the listener and every connection that is between two requests. A request that has
  // begun is received and answered; then its connection ends. May be called again.
  void StopAccepting();
  // StopAccepting, then waits until every answer has left, for at most `at_most`. Whoever is still
  // there then is cut off (Reply::OnGone). When it returns the threads have ended; tasks that were
  // posted before have run, and what is posted later is dropped. Not on a thread of the server.
  void Stop(std::chrono::milliseconds at_most);

  int n_connections() const;
  // Requests that the handler has and whose answer has not ended.
  int n_open_replies() const;

 private:
  friend class AgentPort;  // which runs on the same threads

  explicit HttpServer(std::shared_ptr<ServerCore> core);

  std::shared_ptr<ServerCore> core_;
};

}  // namespace kvlathe::http
