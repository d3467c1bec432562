#include "server/http/server_core.h"

#include <fmt/format.h>
#include <pthread.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <exception>
#include <random>
#include <utility>

#include "server/http/connection.h"

namespace kvlathe::http {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

// Where accept fails, as it does while every file descriptor is in use, it is tried again after
// this.
constexpr milliseconds kAcceptPause{50};
// Beyond max_connections: so many wait to be told so at a time, and more are closed without a word.
constexpr int kMaxSurplus = 64;

uint64_t RandomPrefix() {
  std::random_device device;
  return device();
}

void RunThread(asio::io_context* io) {
  for (;;) {
    try {
      io->run();
      return;
    } catch (const std::exception&) {
      // From the destructor of something that a handler gave us; its own request may suffer, others
      // must not.
    }
  }
}

}  // namespace

Status OpenListener(const std::string& host, int port, Tcp::acceptor* acceptor) {
  error_code error;
  Tcp::resolver resolver(acceptor->get_executor());
  const auto found = resolver.resolve(
      host, std::to_string(port), Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "host '{}' is no address and no name that is known here", host);
  }
  const Tcp::endpoint endpoint = *found.begin();
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(Tcp::acceptor::max_listen_connections, error);
  if (error) {
    return Error(StatusCode::kInternal, "cannot listen on {} port {}: {}", host, port,
                 error.message());
  }
  return OkStatus();
}

ServerCore::ServerCore(const HttpServerOptions& options, HttpServer::Handler handler)
    : options_(options),
      handler_(std::move(handler)),
      io_(options.n_threads),
      work_(io_.get_executor()),
      accept_strand_(asio::make_strand(io_)),
      acceptor_(accept_strand_),
      accept_timer_(accept_strand_),
      id_prefix_(RandomPrefix()) {}

Status ServerCore::Start() {
  KVL_RETURN_IF_ERROR(OpenListener(options_.host, options_.port, &acceptor_));
  error_code error;
  port_ = acceptor_.local_endpoint(error).port();
  is_accepting_ = true;
  Post(accept_strand_, [self = shared_from_this()] { self->AcceptNext(); });
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < options_.n_threads; ++i) threads_.emplace_back(RunThread, &io_);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return OkStatus();
}

void ServerCore::AcceptNext() {
  if (!is_accepting_) return;
  acceptor_.async_accept(asio::make_strand(io_),
                         [self = shared_from_this()](const error_code& error, Socket socket) {
                           self->OnAccept(error, std::move(socket));
                         });
}

void ServerCore::OnAccept(const error_code& error, Socket socket) {
  if (!is_accepting_) return;
  if (!error) {
    AcceptNext();  // first: whatever becomes of this one, others are taken
    return Admit(std::move(socket));
  }
  accept_timer_.expires_after(kAcceptPause);
  accept_timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) self->AcceptNext();
  });
}

void ServerCore::Admit(Socket socket) {
  const std::lock_guard lock(mutex_);
  if (!is_accepting_) return;
  const int n_regular = static_cast<int>(connections_.size()) - n_surplus_;
  const bool is_surplus = n_regular >= options_.max_connections;
  if (is_surplus && n_surplus_ >= kMaxSurplus) return;
  const auto connection =
      std::make_shared<Connection>(shared_from_this(), std::move(socket), is_surplus);
  connections_[connection.get()] = {connection, is_surplus, false};
  n_surplus_ += is_surplus;
  connection->PostStart();
}

std::vector<std::shared_ptr<Connection>> ServerCore::Connections() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connections;
  connections.reserve(connections_.size());
  for (const auto& [key, entry] : connections_) {
    if (auto connection = entry.connection.lock()) connections.push_back(std::move(connection));
  }
  return connections;
}

int ServerCore::n_connections() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(connections_.size());
}

void ServerCore::SetLingering(Connection* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(connection);
  if (found == connections_.end() || std::exchange(found->second.is_lingering, true)) return;
  ++n_lingering_;
  connections_changed_.notify_all();
}

void ServerCore::Remove(Connection* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  n_surplus_ -= found->second.is_surplus;
  n_lingering_ -= found->second.is_lingering;
  connections_.erase(found);
  connections_changed_.notify_all();
}

void ServerCore::Post(const Strand& strand, std::function<void()> task) {
  const std::shared_lock lock(post_mutex_);
  if (!is_stopped_) asio::post(strand, std::move(task));
}

void ServerCore::CallAtStop(std::function<void()> closer) {
  const std::lock_guard lock(mutex_);
  closers_.push_back(std::move(closer));
}

std::string ServerCore::MakeRequestId() {
  return fmt::format("req-{:08x}{:08x}", id_prefix_, ++n_ids_);
}

bool ServerCore::CountReceivedBytes(int64_t change) {
  return (n_received_bytes_ += change) <= options_.max_received_bytes;
}

void ServerCore::StopAccepting() {
  {
    const std::lock_guard lock(mutex_);
    is_accepting_ = false;
  }
  Post(accept_strand_, [self = shared_from_this()] {
    error_code ignored;  // it may be closed already
    self->acceptor_.close(ignored);
    self->accept_timer_.cancel();
  });
  for (const auto& connection : Connections()) connection->PostStopAccepting();
}

void ServerCore::Stop(milliseconds at_most) {
  const std::lock_guard stop_lock(stop_mutex_);
  if (threads_.empty()) return;
  StopAccepting();
  {
    std::unique_lock lock(mutex_);
    connections_changed_.wait_for(
        lock, at_most, [this] { return static_cast<int>(connections_.size()) == n_lingering_; });
  }
  for (const auto& connection : Connections()) connection->PostClose();
  std::vector<std::function<void()>> closers;
  {
    std::unique_lock lock(mutex_);
    connections_changed_.wait(lock, [this] { return connections_.empty(); });
    closers.swap(closers_);
  }
  for (const auto& closer : closers) closer();
  {
    const std::unique_lock lock(post_mutex_);
    is_stopped_ = true;
  }
  // What was posted still runs; then nothing is left to run, and the threads end.
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace kvlathe::http
