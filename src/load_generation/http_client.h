// A small HTTP client over Boost.Beast: plain http, connections that are kept, bodies as they
// arrive.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// The address of a server, which a user gives as http://HOST[:PORT][/PATH].
struct ServerAddress {
  std::string host, port;
  std::string path;  // before every target, "" or "/proxy"

  // Reads an address. https and what is no address are kInvalidArgument.
  static StatusOr<ServerAddress> Parse(std::string_view url);
  std::string HostHeader() const;
};

// Looks the host up. An unknown name is kNotFound.
StatusOr<std::vector<boost::asio::ip::tcp::endpoint>> Resolve(const ServerAddress& server);

struct HttpCall {
  std::string method = "GET", target;
  std::string body;     // JSON, of a POST
  std::string api_key;  // empty: none is sent
  double timeout_s = 60;
};

// Says how an exchange ended.
struct HttpEnd {
  std::string failure;  // empty: whole; "connect", "timeout", "disconnected", "bad response"
  std::string error;    // what the system said
  int status = 0;       // 0: no answer came
  bool was_reconnected = false;
};

// One connection, which has one exchange at a time. All happens on the thread that runs the
// io_context.
class HttpConnection {
 public:
  using BytesCallback = std::function<void(int status, std::string_view bytes)>;
  using EndCallback = std::function<void(const HttpEnd&)>;

  // `io` outlives the connection, which need not outlive its exchange.
  HttpConnection(boost::asio::io_context* io, ServerAddress server,
                 std::vector<boost::asio::ip::tcp::endpoint> endpoints);
  ~HttpConnection();

  // Sends a request, on a new connection where there is none. A server may close a connection that
  // lies idle: if an exchange on a used one ends before the first byte of its answer, it is sent
  // once more on a new connection.
  void Start(const HttpCall& call, BytesCallback on_bytes, EndCallback on_end);

 private:
  class Exchange;
  std::shared_ptr<Exchange> exchange_;
};

// Makes a whole exchange on a connection of its own and waits for it. An answer of any status is an
// answer.
struct HttpAnswer {
  int status = 0;
  std::string body;
};
StatusOr<HttpAnswer> CallAndWait(const ServerAddress& server, const HttpCall& call);

}  // namespace kvlathe
