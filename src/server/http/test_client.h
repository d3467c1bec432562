// Tests talk to a server on this machine by a TCP connection, byte by byte, without a library that
// would not send what a test wants to send.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kvlathe::http {

struct TestResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // of chunks: put together
};

class TestClient {
 public:
  // receive_bytes: what the system may buffer for reading; 0: as it likes.
  explicit TestClient(int port, int receive_bytes = 0);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool is_connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // False: the server has closed the connection.
  bool Send(std::string_view bytes);
  void CloseSendingSide();
  // Close: with FIN; Reset: with RST.
  void Close();
  void Reset();

  // Everything up to what ends it; none when the server closes or five seconds pass before.
  std::optional<std::string> ReadUntil(std::string_view end);
  std::optional<TestResponse> ReadResponse(bool is_head = false);
  // What comes until the server closes, or none if it does not within `at_most`.
  std::optional<std::string> ReadToEnd(
      std::chrono::milliseconds at_most = std::chrono::milliseconds(5000));

 private:
  bool Fill(std::chrono::steady_clock::time_point until);  // false: no more; see has_ended_

  int fd_ = -1;
  bool has_ended_ = false;
  std::string buffer_;
};

}  // namespace kvlathe::http
