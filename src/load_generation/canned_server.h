// A server for tests that answers with bytes as they are, on a thread for each connection.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvlathe {

struct CannedAnswer {
  std::vector<std::string> pieces;  // each written by itself
  bool closes = false;              // the connection, behind the last piece
  int wait_ms = 0;                  // before the first piece
};

class CannedServer {
 public:
  // Of a request with its header and body; numbers count from 0 in the order in which requests
  // come. Called by any thread.
  using Handler = std::function<CannedAnswer(int number, const std::string& request)>;

  explicit CannedServer(Handler handler);
  ~CannedServer();  // ends all connections

  int port() const { return port_; }
  int n_connections() const { return n_connections_; }
  int n_requests() const { return n_requests_; }

 private:
  void Accept();
  void Serve(boost::asio::ip::tcp::socket* socket);

  Handler handler_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  int port_;
  std::atomic<int> n_connections_ = 0, n_requests_ = 0;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  // Under mutex_.
  std::vector<std::unique_ptr<boost::asio::ip::tcp::socket>> sockets_;
  std::vector<std::thread> threads_;
  std::thread accepting_;
};

// Bodies as HTTP/1.1 has them.
std::string WithLength(int status, const std::string& body);
std::string ChunkedHeader();
std::string Chunk(const std::string& data);
inline const char* const kLastChunk = "0\r\n\r\n";

}  // namespace kvlathe
