// A connection of the HTTP server reads requests, hands them to the handler one after another and
// writes what their replies have. Everything but PostX runs on the connection's strand. It always
// waits for the client to send or to hang up, also while a request is being computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/reply_state.h"
#include "server/http/request_reader.h"
#include "server/http/server_core.h"

namespace kvlathe::http {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // is_surplus: there are enough connections, and this one gets 503.
  Connection(std::shared_ptr<ServerCore> core, Socket socket, bool is_surplus);

  void PostStart();
  // The server takes no new requests: ends the connection if it is between two.
  void PostStopAccepting();
  void PostClose();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  bool IsIdle();  // between two requests, and no byte of the next has come
  void Start();
  void BeginRequest(std::chrono::milliseconds timeout);
  void WaitForBytes();
  void OnReadable(const boost::system::error_code& error);
  void OnBytes(std::string_view bytes);
  void OnEndOfInput();
  void Receive(std::string_view bytes);
  void CountReceived();
  void Dispatch();
  void Refuse(int status, const std::string& message);
  std::shared_ptr<ReplyState> MakeReply(std::string id, bool is_open);
  std::string RequestId();

  void Flush();
  void Write(std::string head, std::string body);
  void WriteSome();
  void OnWritten(const boost::system::error_code& error, size_t n_bytes);
  void FinishAnswer();
  void Linger();
  void Close();

  void SetReadDeadline(Clock::time_point deadline);
  void ArmTimer();
  bool HasClientTakenBytes();
  void OnTimer(const boost::system::error_code& error);

  const std::shared_ptr<ServerCore> core_;
  Socket socket_;
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> timer_;
  const bool is_surplus_;
  std::string peer_;

  std::optional<RequestReader> reader_;  // of the request that comes
  std::string input_;                    // behind the request that is being answered
  std::shared_ptr<ReplyState> reply_;    // of that request
  int64_t n_counted_bytes_ = 0;          // what CountReceivedBytes has of this connection
  bool keep_alive_ = true;
  bool ignores_input_ = false;  // the connection ends behind this answer, whatever comes
  bool has_input_ended_ = false;
  bool is_lingering_ = false;
  bool is_closed_ = false;

  // What is being written: head, then body.
  struct Output {
    std::string head;
    std::string body;
    size_t n_written = 0;
  };
  Output output_;
  bool is_writing_ = false;
  int n_queued_bytes_ = 0;        // in the system, when write_deadline_ came last
  bool ends_answer_ = false;      // what is being written does
  bool ends_connection_ = false;  // and so does the connection

  Clock::time_point read_deadline_ = kNever;
  Clock::time_point write_deadline_ = kNever;
  Clock::time_point linger_end_ = kNever;
  Clock::time_point timer_at_ = kNever;
};

}  // namespace kvlathe::http
