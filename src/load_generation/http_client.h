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

// Of a server, as a user gives it: http://HOST[:PORT][/PATH].
struct ServerAddress {
  std::string host, port;
  std::string path;  // before every target, "" or "/proxy"

  // kInvalidArgument for https and for what is no address.
  static StatusOr<ServerAddress> Parse(std::string_view url);
  std::string HostHeader() const;
};

// kNotFound where the name is not known.
StatusOr<std::vector<boost::asio::ip::tcp::endpoint>> Resolve(const ServerAddress& server);

struct HttpCall {
  std::string method = "GET", target;
  std::string body;     // JSON, of a POST
  std::string api_key;  // empty: none is sent
  double timeout_s = 60;
};

// How an exchange ended.
struct HttpEnd {
  std::string failure;  // empty: whole; "connect", "timeout", "disconnected", "bad response"
  std::string error;    // what the system said
  int status = 0;       // 0: no answer came
  bool was_reconnected = false;
};

// One connection, with one exchange at a time. All on the thread that runs the io_context.
class HttpConnection {
 public:
  using BytesCallback = std::function<void(int status, std::string_view bytes)>;
  using EndCallback = std::function<void(const HttpEnd&)>;

  // `io` outlives the connection, which need not outlive its exchange.
  HttpConnection(boost::asio::io_context* io, ServerAddress server,
                 std::vector<boost::asio::ip::tcp::endpoint> endpoints);
  ~HttpConnection();

  // Connects where it is not connected (any more). A server may close a connection that lies idle:
  // if an exchange on a used one ends before the first byte of its answer, it is sent once more on
  // a new connection.
  void Start(const HttpCall& call, BytesCallback on_bytes, EndCallback on_end);

 private:
  class Exchange;
  std::shared_ptr<Exchange> exchange_;
};

// A whole exchange on a connection of its own, waited for. An answer of any status is an answer.
struct HttpAnswer {
  int status = 0;
  std::string body;
};
StatusOr<HttpAnswer> CallAndWait(const ServerAddress& server, const HttpCall& call);

}  // namespace kvlathe
