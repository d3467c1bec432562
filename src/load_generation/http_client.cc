#include "load_generation/http_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

namespace kvlathe {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

StatusOr<ServerAddress> ServerAddress::Parse(std::string_view url) {
  constexpr std::string_view kHttp = "http://";
  if (url.starts_with("https://")) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: only http is spoken here; put a proxy in front that ends TLS", url);
  }
  const auto wrong = [url](const char* what) {
    return Error(StatusCode::kInvalidArgument, "{}: {}; a server is http://HOST:PORT", url, what);
  };
  if (!url.starts_with(kHttp)) return wrong("no http:// before it");
  std::string_view rest = url.substr(kHttp.size());
  ServerAddress server;
  const size_t slash = std::min(rest.find('/'), rest.size());
  server.path = std::string(rest.substr(slash));
  while (server.path.ends_with('/')) server.path.pop_back();
  rest = rest.substr(0, slash);
  // An address of IPv6 stands in brackets.
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == std::string_view::npos) return wrong("a bracket is not closed");
  const size_t colon = rest.find(':', bracket);
  server.host = std::string(rest.substr(0, std::min(colon, rest.size())));
  if (bracket > 0) server.host = std::string(rest.substr(1, bracket - 1));
  server.port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  const bool is_number =
      !server.port.empty() && server.port.size() <= 5 &&
      std::ranges::all_of(server.port, [](unsigned char c) { return std::isdigit(c); });
  if (server.host.empty()) return wrong("no host");
  if (!is_number || std::stoi(server.port) < 1 || std::stoi(server.port) > 65535) {
    return wrong("the port is not a number from 1 to 65535");
  }
  return server;
}

std::string ServerAddress::HostHeader() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

StatusOr<std::vector<tcp::endpoint>> Resolve(const ServerAddress& server) {
  asio::io_context io;
  tcp::resolver resolver(io);
  beast::error_code error;
  const auto found = resolver.resolve(server.host, server.port, error);
  if (error) {
    return Error(StatusCode::kNotFound, "{}: {}; check --base-url", server.HostHeader(),
                 error.message());
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return endpoints;
}

// Keeps itself alive while an operation is under way.
class HttpConnection::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context* io, ServerAddress server, std::vector<tcp::endpoint> endpoints)
      : stream_(*io), server_(std::move(server)), endpoints_(std::move(endpoints)) {}

  void Start(const HttpCall& call, BytesCallback on_bytes, EndCallback on_end) {
    on_bytes_ = std::move(on_bytes);
    on_end_ = std::move(on_end);
    end_ = {};
    stream_.expires_after(std::chrono::milliseconds(std::llround(1000 * call.timeout_s)));
    request_ = {};
    request_.method_string(call.method);
    request_.target(server_.path + call.target);
    request_.version(11);
    request_.set(beast::http::field::host, server_.HostHeader());
    request_.set(beast::http::field::user_agent, "kvlathe-bench");
    request_.set(beast::http::field::accept, "*/*");
    if (!call.api_key.empty()) {
      request_.set(beast::http::field::authorization, "Bearer " + call.api_key);
    }
    if (!call.body.empty()) {
      request_.set(beast::http::field::content_type, "application/json");
      request_.body() = call.body;
      request_.prepare_payload();
    }
    was_used_ = is_open_;
    if (is_open_) {
      Write();
    } else {
      Connect();
    }
  }

 private:
  void Connect() {
    buffer_.clear();
    stream_.async_connect(
        endpoints_, [self = shared_from_this()](beast::error_code error, const tcp::endpoint&) {
          if (error) return self->Fail("connect", error);
          self->is_open_ = true;
          beast::error_code ignored;  // where the option is not there, packets may be late, no more
          self->stream_.socket().set_option(tcp::no_delay(true), ignored);
          self->Write();
        });
  }

  void Write() {
    beast::http::async_write(stream_, request_,
                             [self = shared_from_this()](beast::error_code error, size_t) {
                               if (error) return self->FailOrReconnect(error);
                               self->ReadHeader();
                             });
  }

  void ReadHeader() {
    parser_.emplace();
    parser_->body_limit(boost::none);
    beast::http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t n_bytes) {
          if (error && n_bytes == 0 && self->buffer_.size() == 0)
            return self->FailOrReconnect(error);
          if (error) return self->Fail("bad response", error);
          self->end_.status = static_cast<int>(self->parser_->get().result_int());
          self->ReadBody();
        });
  }

  void ReadBody() {
    if (parser_->is_done()) return Finish();
    parser_->get().body().data = bytes_.data();
    parser_->get().body().size = bytes_.size();
    beast::http::async_read_some(
        stream_, buffer_, *parser_, [self = shared_from_this()](beast::error_code error, size_t) {
          const size_t n_bytes = self->bytes_.size() - self->parser_->get().body().size;
          // As much as fits came, and more may follow.
          if (error == beast::http::error::need_buffer) error = {};
          if (n_bytes > 0) {
            self->on_bytes_(self->end_.status, std::string_view(self->bytes_.data(), n_bytes));
          }
          if (error) return self->Fail("disconnected", error);
          self->ReadBody();
        });
  }

  void FailOrReconnect(beast::error_code error) {
    const bool is_timeout = error == beast::error::timeout;
    if (!was_used_ || is_timeout || end_.was_reconnected) return Fail("disconnected", error);
    end_.was_reconnected = true;
    Close();
    Connect();
  }

  void Fail(const char* kind, beast::error_code error) {
    end_.failure = error == beast::error::timeout ? "timeout" : kind;
    end_.error = error.message();
    Close();
    End();
  }

  void Finish() {
    if (!parser_->keep_alive()) Close();
    stream_.expires_never();
    End();
  }

  void Close() {
    is_open_ = false;
    beast::error_code ignored;  // it may be closed already
    stream_.socket().close(ignored);
  }

  void End() {
    on_bytes_ = nullptr;
    const EndCallback on_end = std::exchange(on_end_, nullptr);
    on_end(end_);
  }

  beast::tcp_stream stream_;
  ServerAddress server_;
  std::vector<tcp::endpoint> endpoints_;
  bool is_open_ = false;
  bool was_used_ = false;  // before this exchange
  beast::flat_buffer buffer_;
  std::array<char, 16384> bytes_;
  beast::http::request<beast::http::string_body> request_;
  std::optional<beast::http::response_parser<beast::http::buffer_body>> parser_;
  BytesCallback on_bytes_;
  EndCallback on_end_;
  HttpEnd end_;
};

HttpConnection::HttpConnection(asio::io_context* io, ServerAddress server,
                               std::vector<tcp::endpoint> endpoints)
    : exchange_(std::make_shared<Exchange>(io, std::move(server), std::move(endpoints))) {}
HttpConnection::~HttpConnection() = default;

void HttpConnection::Start(const HttpCall& call, BytesCallback on_bytes, EndCallback on_end) {
  exchange_->Start(call, std::move(on_bytes), std::move(on_end));
}

StatusOr<HttpAnswer> CallAndWait(const ServerAddress& server, const HttpCall& call) {
  KVL_ASSIGN_OR_RETURN(auto endpoints, Resolve(server));
  asio::io_context io;
  HttpConnection connection(&io, server, std::move(endpoints));
  HttpAnswer answer;
  HttpEnd end;
  connection.Start(
      call, [&answer](int, std::string_view bytes) { answer.body += bytes; },
      [&end](const HttpEnd& reached) { end = reached; });
  io.run();
  if (!end.failure.empty()) {
    return Error(StatusCode::kInternal, "{} {}: {} ({}); is the server there?", server.HostHeader(),
                 call.target, end.failure, end.error);
  }
  answer.status = end.status;
  return answer;
}

}  // namespace kvlathe
