#include "server/http/test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace kvlathe::http {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{5};

}  // namespace

TestClient::TestClient(int port, int receive_bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return;
  if (receive_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

TestClient::~TestClient() { Close(); }

void TestClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void TestClient::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

void TestClient::CloseSendingSide() { shutdown(fd_, SHUT_WR); }

bool TestClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool TestClient::Fill(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  pollfd wanted{fd_, POLLIN, 0};
  if (has_ended_ || left.count() <= 0 || poll(&wanted, 1, static_cast<int>(left.count())) <= 0) {
    return false;
  }
  char bytes[65536];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  has_ended_ = n <= 0;
  if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

std::optional<std::string> TestClient::ReadUntil(std::string_view end) {
  const auto until = Clock::now() + kPatience;
  for (;;) {
    const size_t found = buffer_.find(end);
    if (found != std::string::npos) {
      std::string text = buffer_.substr(0, found + end.size());
      buffer_.erase(0, text.size());
      return text;
    }
    if (!Fill(until)) return std::nullopt;
  }
}

std::optional<std::string> TestClient::ReadToEnd(std::chrono::milliseconds at_most) {
  const auto until = Clock::now() + at_most;
  while (Fill(until)) {
  }
  if (!has_ended_) return std::nullopt;
  return std::exchange(buffer_, std::string());
}

std::optional<TestResponse> TestClient::ReadResponse(bool is_head) {
  const auto head = ReadUntil("\r\n\r\n");
  if (!head || !head->starts_with("HTTP/1.1 ")) return std::nullopt;
  TestResponse response;
  response.status = std::stoi(head->substr(9, 3));
  size_t begin = head->find("\r\n") + 2;
  while (begin + 2 < head->size()) {
    const size_t end = head->find("\r\n", begin);
    const size_t colon = head->find(": ", begin);
    std::string name = head->substr(begin, colon - begin);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers[name] = head->substr(colon + 2, end - colon - 2);
    begin = end + 2;
  }
  if (is_head) return response;
  if (response.headers.count("transfer-encoding") == 0) {
    const size_t n_bytes = response.headers.count("content-length") == 0
                               ? 0
                               : std::stoul(response.headers["content-length"]);
    const auto until = Clock::now() + kPatience;
    while (buffer_.size() < n_bytes) {
      if (!Fill(until)) return std::nullopt;
    }
    response.body = buffer_.substr(0, n_bytes);
    buffer_.erase(0, n_bytes);
    return response;
  }
  for (;;) {
    const auto line = ReadUntil("\r\n");
    if (!line) return std::nullopt;
    const size_t n_bytes = std::stoul(*line, nullptr, 16);
    const auto until = Clock::now() + kPatience;
    while (buffer_.size() < n_bytes + 2) {
      if (!Fill(until)) return std::nullopt;
    }
    response.body += buffer_.substr(0, n_bytes);
    buffer_.erase(0, n_bytes + 2);
    if (n_bytes == 0) return response;
  }
}

}  // namespace kvlathe::http
