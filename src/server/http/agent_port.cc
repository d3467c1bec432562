#include "server/http/agent_port.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <mutex>
#include <set>
#include <utility>

#include "server/http/server_core.h"

namespace kvlathe::http {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kMaxOpen = 64;
constexpr std::chrono::milliseconds kPatience{1'000};
constexpr std::chrono::milliseconds kAgentAcceptPause{50};

}  // namespace

// Everything but Close and TakeLine's lock runs on one strand.
class AgentPort::Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<ServerCore> core, std::function<std::string()> line)
      : core_(std::move(core)),
        strand_(asio::make_strand(core_->io())),
        acceptor_(strand_),
        timer_(strand_),
        line_(std::move(line)) {}

  Status Open(const Options& options) {
    KVL_RETURN_IF_ERROR(OpenListener(options.host, options.port, &acceptor_));
    error_code error;
    port_ = acceptor_.local_endpoint(error).port();
    core_->Post(strand_, [self = shared_from_this()] { self->AcceptNext(); });
    core_->CallAtStop([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Close();
    });
    return OkStatus();
  }

  int port() const { return port_; }

  // Any thread.
  void Close() {
    {
      const std::lock_guard lock(line_mutex_);
      line_ = nullptr;
    }
    core_->Post(strand_, [self = shared_from_this()] {
      error_code ignored;  // it may be closed already
      self->acceptor_.close(ignored);
      self->timer_.cancel();
      for (const auto& visitor : self->visitors_) visitor->socket.close(ignored);
    });
  }

 private:
  // A connection that has its line and waits for the client to hang up.
  struct Visitor {
    explicit Visitor(Socket its_socket)
        : socket(std::move(its_socket)), timer(socket.get_executor()) {}
    Socket socket;
    asio::basic_waitable_timer<std::chrono::steady_clock,
                               asio::wait_traits<std::chrono::steady_clock>, Strand>
        timer;
    std::string line;
    std::array<char, 256> rest;
  };

  void AcceptNext() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(strand_,
                           [self = shared_from_this()](const error_code& error, Socket socket) {
                             self->OnAccept(error, std::move(socket));
                           });
  }

  void OnAccept(const error_code& error, Socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      if (visitors_.size() < kMaxOpen) Greet(std::make_shared<Visitor>(std::move(socket)));
      return AcceptNext();
    }
    timer_.expires_after(kAgentAcceptPause);  // as while every file descriptor is in use
    timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
      if (!cancelled) self->AcceptNext();
    });
  }

  std::string TakeLine() {
    const std::lock_guard lock(line_mutex_);
    return line_ ? line_() : std::string();
  }

  void Greet(const std::shared_ptr<Visitor>& visitor) {
    visitor->line = TakeLine();
    visitors_.insert(visitor);
    visitor->timer.expires_after(kPatience);
    visitor->timer.async_wait([visitor](const error_code&) {
      error_code ignored;  // it is over either way
      visitor->socket.close(ignored);
    });
    asio::async_write(visitor->socket, asio::buffer(visitor->line),
                      [self = shared_from_this(), visitor](const error_code& error, size_t) {
                        error_code failed = error;
                        if (!failed) visitor->socket.shutdown(Socket::shutdown_send, failed);
                        failed ? self->Dismiss(visitor) : self->Listen(visitor);
                      });
  }

  // HAProxy may say something first (agent-send): a socket that is closed with bytes unread resets
  // the connection, and the line with it.
  void Listen(const std::shared_ptr<Visitor>& visitor) {
    visitor->socket.async_read_some(
        asio::buffer(visitor->rest),
        [self = shared_from_this(), visitor](const error_code& error, size_t) {
          error ? self->Dismiss(visitor) : self->Listen(visitor);
        });
  }

  void Dismiss(const std::shared_ptr<Visitor>& visitor) {
    visitors_.erase(visitor);
    visitor->timer.cancel();  // whose handler closes the socket
  }

  const std::shared_ptr<ServerCore> core_;
  const Strand strand_;
  Tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  int port_ = 0;
  std::set<std::shared_ptr<Visitor>> visitors_;
  std::mutex line_mutex_;
  std::function<std::string()> line_;
};

StatusOr<std::unique_ptr<AgentPort>> AgentPort::Start(const HttpServer& server,
                                                      const Options& options,
                                                      std::function<std::string()> line) {
  auto listener = std::make_shared<Listener>(server.core_, std::move(line));
  KVL_RETURN_IF_ERROR(listener->Open(options));
  return std::unique_ptr<AgentPort>(new AgentPort(std::move(listener)));
}

AgentPort::AgentPort(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {}

AgentPort::~AgentPort() { listener_->Close(); }

int AgentPort::port() const { return listener_->port(); }

}  // namespace kvlathe::http
