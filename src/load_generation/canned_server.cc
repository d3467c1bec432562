#include "load_generation/canned_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdlib>
#include <utility>

namespace kvlathe {

namespace asio = boost::asio;
using asio::ip::tcp;

CannedServer::CannedServer(Handler handler)
    : handler_(std::move(handler)),
      acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
      port_(acceptor_.local_endpoint().port()),
      accepting_([this] { Accept(); }) {}

CannedServer::~CannedServer() {
  ends_ = true;
  // close() would leave a thread in accept() or read() where it is.
  ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
  accepting_.join();
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& socket : sockets_) ::shutdown(socket->native_handle(), SHUT_RDWR);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void CannedServer::Accept() {
  while (!ends_) {
    auto socket = std::make_unique<tcp::socket>(io_);
    boost::system::error_code error;
    acceptor_.accept(*socket, error);
    if (error) return;
    ++n_connections_;
    const std::lock_guard lock(mutex_);
    tcp::socket* const served = socket.get();
    sockets_.push_back(std::move(socket));
    threads_.emplace_back([this, served] { Serve(served); });
  }
}

void CannedServer::Serve(tcp::socket* socket) {
  std::string buffer;
  boost::system::error_code error;
  for (;;) {
    const size_t header =
        asio::read_until(*socket, asio::dynamic_buffer(buffer), "\r\n\r\n", error);
    if (error) return;
    const size_t length = buffer.find("Content-Length: ");
    size_t body = length < header ? std::strtoul(buffer.c_str() + length + 16, nullptr, 10) : 0;
    const size_t missing = header + body > buffer.size() ? header + body - buffer.size() : 0;
    asio::read(*socket, asio::dynamic_buffer(buffer), asio::transfer_exactly(missing), error);
    if (error) return;
    const CannedAnswer answer = handler_(n_requests_++, buffer.substr(0, header + body));
    buffer.erase(0, header + body);
    std::this_thread::sleep_for(std::chrono::milliseconds(answer.wait_ms));
    for (const std::string& piece : answer.pieces) {
      asio::write(*socket, asio::buffer(piece), error);
      if (error) return;
    }
    if (answer.closes) {
      socket->shutdown(tcp::socket::shutdown_both, error);
      return;
    }
  }
}

std::string WithLength(int status, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
      body.size(), body);
}

std::string ChunkedHeader() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
}

std::string Chunk(const std::string& data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace kvlathe
