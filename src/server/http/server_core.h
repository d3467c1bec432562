// The parts of the HTTP server share its core: the threads, the listener, the connections that are
// open and the counts that limits are about.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "server/http/http_server.h"

namespace kvlathe::http {

using Tcp = boost::asio::ip::tcp;
using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
using Socket = boost::asio::basic_stream_socket<Tcp, Strand>;

class Connection;

// Opens a listener on the first address of `host`; `port` 0 takes a free one.
Status OpenListener(const std::string& host, int port, Tcp::acceptor* acceptor);

class ServerCore : public std::enable_shared_from_this<ServerCore> {
 public:
  ServerCore(const HttpServerOptions& options, HttpServer::Handler handler);

  Status Start();
  int port() const { return port_; }
  void StopAccepting();
  void Stop(std::chrono::milliseconds at_most);
  int n_connections();
  int n_open_replies() const { return n_open_replies_; }

  boost::asio::io_context& io() { return io_; }
  const HttpServerOptions& options() const { return options_; }
  const HttpServer::Handler& handler() const { return handler_; }
  bool is_accepting() const { return is_accepting_; }

  // Runs the task on a thread of the server; drops it once the server has stopped.
  void Post(const Strand& strand, std::function<void()> task);
  // Runs with the next Stop, before the threads end: closes what else runs on them.
  void CallAtStop(std::function<void()> closer);
  std::string MakeRequestId();
  void CountOpenReplies(int change) { n_open_replies_ += change; }
  // Of the bytes of requests that are being received. False: there are more than allowed.
  bool CountReceivedBytes(int64_t change);
  // A connection that only waits for its client to hang up, and one that has ended.
  void SetLingering(Connection* connection);
  void Remove(Connection* connection);

 private:
  struct Entry {
    std::weak_ptr<Connection> connection;
    bool is_surplus = false;  // beyond max_connections: it gets its 503
    bool is_lingering = false;
  };

  void AcceptNext();
  void OnAccept(const boost::system::error_code& error, Socket socket);
  void Admit(Socket socket);
  std::vector<std::shared_ptr<Connection>> Connections();

  const HttpServerOptions options_;
  const HttpServer::Handler handler_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  Strand accept_strand_;
  Tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  std::vector<std::thread> threads_;
  int port_ = 0;
  const uint64_t id_prefix_;

  std::atomic<bool> is_accepting_ = false;
  std::atomic<int> n_open_replies_ = 0;
  std::atomic<int64_t> n_received_bytes_ = 0;
  std::atomic<uint64_t> n_ids_ = 0;

  std::mutex stop_mutex_;         // of threads_
  std::shared_mutex post_mutex_;  // shared: to post; alone: to set is_stopped_
  bool is_stopped_ = false;

  std::mutex mutex_;  // of what follows
  std::condition_variable connections_changed_;
  std::unordered_map<Connection*, Entry> connections_;
  int n_surplus_ = 0;
  int n_lingering_ = 0;
  std::vector<std::function<void()>> closers_;
};

}  // namespace kvlathe::http
