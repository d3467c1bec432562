#include "server/http/connection.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <exception>
#include <limits>
#include <utility>

#include "server/http/cors_origins.h"
#include "server/http/refusal_response.h"

namespace kvlathe::http {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 64 << 10;
// Of requests that come before the answer to the one in front of them has left.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// A connection that the server ends stays open for reading, so that the client gets the answer and
// not a reset: until the client hangs up, or sends nothing for the first time, or for the second.
constexpr milliseconds kLingerPause{2'000};
constexpr milliseconds kLingerTime{10'000};
// A surplus connection gets its 503 with its first byte; without one it ends after this.
constexpr milliseconds kSurplusTimeout{1'000};

std::string PeerOf(const Socket& socket) {
  error_code error;
  const Tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return "unknown";
  const std::string address = peer.address().to_string();
  return peer.address().is_v6() ? fmt::format("[{}]:{}", address, peer.port())
                                : fmt::format("{}:{}", address, peer.port());
}

// A host that vanished without a word while its request is computed is noticed after a minute.
void SetSocketOptions(Socket* socket) {
  using Seconds = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Count = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  error_code ignored;  // a connection that has ended already; reading says so
  socket->non_blocking(true, ignored);
  socket->set_option(Tcp::no_delay(true), ignored);
  socket->set_option(asio::socket_base::keep_alive(true), ignored);
  socket->set_option(Seconds(30), ignored);
  socket->set_option(Interval(10), ignored);
  socket->set_option(Count(3), ignored);
}

bool IsSaneId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.:/+=@").find(c) != std::string_view::npos;
  });
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket, bool is_surplus)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      is_surplus_(is_surplus) {}

void Connection::PostStart() {
  core_->Post(socket_.get_executor(), [self = shared_from_this()] { self->Start(); });
}

void Connection::PostStopAccepting() {
  core_->Post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->IsIdle()) self->Close();
  });
}

bool Connection::IsIdle() {
  error_code ignored;  // of a connection that has ended
  return !is_closed_ && !is_lingering_ && !reply_ && !is_writing_ && reader_ &&
         reader_->phase() == RequestReader::Phase::kBeforeRequest &&
         socket_.available(ignored) == 0;
}

void Connection::PostClose() {
  core_->Post(socket_.get_executor(), [self = shared_from_this()] { self->Close(); });
}

void Connection::Start() {
  if (is_closed_) return;
  SetSocketOptions(&socket_);
  peer_ = PeerOf(socket_);
  BeginRequest(is_surplus_ ? kSurplusTimeout : core_->options().header_timeout);
  WaitForBytes();
}

void Connection::BeginRequest(milliseconds timeout) {
  const HttpServerOptions& options = core_->options();
  reader_.emplace(
      RequestLimits{options.max_header_bytes, options.max_headers, options.max_body_bytes});
  SetReadDeadline(Clock::now() + timeout);
}

// Waits without a buffer: an idle connection holds no memory for what may come.
void Connection::WaitForBytes() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->OnReadable(error);
  });
}

void Connection::OnReadable(const error_code& error) {
  if (is_closed_) return;
  if (error) return Close();
  thread_local std::array<char, kReadBytes> buffer;
  error_code read_error;
  const size_t n_bytes = socket_.read_some(asio::buffer(buffer), read_error);
  if (read_error == asio::error::eof) return OnEndOfInput();
  const bool is_nothing = read_error == asio::error::would_block ||
                          read_error == asio::error::try_again ||
                          read_error == asio::error::interrupted;
  if (read_error && !is_nothing) return Close();
  try {
    if (!read_error) OnBytes({buffer.data(), n_bytes});
  } catch (const std::exception&) {  // no memory for what came
    return Close();
  }
  if (!is_closed_) WaitForBytes();
}

void Connection::OnBytes(std::string_view bytes) {
  if (is_lingering_) {
    SetReadDeadline(std::min(linger_end_, Clock::now() + kLingerPause));
  } else if (ignores_input_) {
    return;
  } else if (!reply_) {
    Receive(bytes);
  } else if (input_.size() + bytes.size() <= kMaxPipelinedBytes) {
    input_ += bytes;
  } else {
    input_ = std::string();
    ignores_input_ = true;
    keep_alive_ = false;
  }
}

// The client has closed its sending side. What waits to be written is still written.
void Connection::OnEndOfInput() {
  has_input_ended_ = true;
  if (is_lingering_ || !reply_ || !reply_->has_ended()) Close();
}

// No request is being answered: reads the next one.
void Connection::Receive(std::string_view bytes) {
  if (is_surplus_) return Refuse(503, "the server has as many connections as it may have");
  using Phase = RequestReader::Phase;
  const Phase before = reader_->phase();
  const size_t n_used = reader_->Read(bytes);
  const Phase after = reader_->phase();
  if (after == Phase::kRefused) {
    return Refuse(reader_->refusal_status(), reader_->refusal_message());
  }
  if (after == Phase::kComplete) {
    input_ = std::string(bytes.substr(n_used));
    return Dispatch();
  }
  if (before == Phase::kBeforeRequest && after != before) {
    SetReadDeadline(Clock::now() + core_->options().header_timeout);
  }
  if (before != Phase::kBody && after == Phase::kBody) {
    SetReadDeadline(Clock::now() + core_->options().body_timeout);
    if (reader_->expects_continue() && n_used == bytes.size() && reader_->request().body.empty()) {
      Write("HTTP/1.1 100 Continue\r\n\r\n", "");
    }
  }
  CountReceived();
}

void Connection::CountReceived() {
  const int64_t n_bytes = reader_->n_buffered_bytes();
  const bool may_go_on = core_->CountReceivedBytes(n_bytes - n_counted_bytes_);
  const bool has_grown = n_bytes > n_counted_bytes_;
  n_counted_bytes_ = n_bytes;
  if (has_grown && !may_go_on) Refuse(503, "the server is receiving too many long requests");
}

std::string Connection::RequestId() {
  const std::string_view given = reader_->request().Header("x-request-id");
  return IsSaneId(given) ? std::string(given) : core_->MakeRequestId();
}

std::shared_ptr<ReplyState> Connection::MakeReply(std::string id, bool is_open) {
  SetReadDeadline(kNever);
  core_->CountReceivedBytes(-std::exchange(n_counted_bytes_, 0));
  const Request& request = reader_->request();
  AnswerFacts facts{.request_id = std::move(id),
                    .is_head = request.method == "HEAD",
                    .is_http_1_0 = reader_->is_http_1_0()};
  const std::string_view origin = request.Header("origin");
  if (MayRead(core_->options().cors_origins, origin)) facts.cors_origin = origin;
  ReplyHooks hooks;
  hooks.post = [core = core_, strand = socket_.get_executor()](std::function<void()> task) {
    core->Post(strand, std::move(task));
  };
  hooks.flush = [core = core_, strand = socket_.get_executor(), weak = weak_from_this()] {
    core->Post(strand, [weak] {
      if (const auto self = weak.lock()) self->Flush();
    });
  };
  if (is_open) {
    core_->CountOpenReplies(1);
    hooks.on_end = [core = core_] { core->CountOpenReplies(-1); };
  }
  return std::make_shared<ReplyState>(std::move(facts), core_->options().max_buffered_bytes,
                                      std::move(hooks));
}

void Connection::Dispatch() {
  keep_alive_ = reader_->keep_alive();
  std::string id = RequestId();
  reply_ = MakeReply(id, true);
  Request request = std::move(reader_->request());
  request.id = std::move(id);
  request.peer = peer_;
  // Held by the call alone: if it throws, the reply is abandoned and answered with 500.
  auto handle = std::make_shared<ReplyHandle>(reply_);
  if (request.method == "OPTIONS" && request.path == "*") {
    return handle->Send({.status = 204, .headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}}});
  }
  try {
    core_->handler()(std::move(request), std::move(handle));
  } catch (const std::exception&) {
    reply_->Abandon();
  }
}

void Connection::Refuse(int status, const std::string& message) {
  keep_alive_ = false;
  ignores_input_ = true;
  const std::string id = RequestId();
  reply_ = MakeReply(id, false);
  reply_->Send(RefusalResponse(status, message));
  if (core_->options().on_refusal) core_->options().on_refusal({id, peer_, status, message});
}

void Connection::Flush() {
  if (is_closed_ || !reply_) return;
  if (reply_->is_dropped()) return Close();
  if (is_writing_) return;
  ReplyState::Output output = reply_->Take(keep_alive_ && core_->is_accepting());
  ends_answer_ = output.is_last;
  ends_connection_ = output.must_close;
  if (!output.is_empty()) return Write(std::move(output.head), std::move(output.body));
  if (output.is_last) FinishAnswer();
}

void Connection::Write(std::string head, std::string body) {
  output_ = {std::move(head), std::move(body)};
  is_writing_ = true;
  WriteSome();
}

void Connection::WriteSome() {
  write_deadline_ = Clock::now() + core_->options().write_timeout;
  n_queued_bytes_ = std::numeric_limits<int>::max();
  ArmTimer();
  const std::array<asio::const_buffer, 2> whole = {asio::buffer(output_.head),
                                                   asio::buffer(output_.body)};
  const size_t n_of_head = std::min(output_.n_written, output_.head.size());
  const std::array<asio::const_buffer, 2> rest = {whole[0] + n_of_head,
                                                  whole[1] + (output_.n_written - n_of_head)};
  // Asio sends with MSG_NOSIGNAL: a client that is gone is an error here, and no SIGPIPE.
  socket_.async_write_some(rest,
                           [self = shared_from_this()](const error_code& error, size_t n_bytes) {
                             self->OnWritten(error, n_bytes);
                           });
}

void Connection::OnWritten(const error_code& error, size_t n_bytes) {
  if (is_closed_) return;
  if (error) return Close();
  output_.n_written += n_bytes;
  const size_t n_left = output_.head.size() + output_.body.size() - output_.n_written;
  if (reply_) reply_->SetUnsent(static_cast<int64_t>(n_left));
  if (n_left > 0) return WriteSome();
  is_writing_ = false;
  write_deadline_ = kNever;
  output_ = {};
  if (std::exchange(ends_answer_, false)) return FinishAnswer();
  Flush();
}

void Connection::FinishAnswer() {
  reply_.reset();
  if (ends_connection_ || !keep_alive_ || has_input_ended_ || !core_->is_accepting()) {
    return Linger();
  }
  BeginRequest(core_->options().idle_timeout);
  const std::string input = std::exchange(input_, std::string());
  if (!input.empty()) Receive(input);
}

void Connection::Linger() {
  if (has_input_ended_) return Close();
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) return Close();
  is_lingering_ = true;
  linger_end_ = Clock::now() + kLingerTime;
  SetReadDeadline(Clock::now() + kLingerPause);
  core_->SetLingering(this);
}

void Connection::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  error_code ignored;  // the descriptor is gone whatever it says
  socket_.close(ignored);
  timer_.cancel();
  core_->CountReceivedBytes(-std::exchange(n_counted_bytes_, 0));
  if (const auto reply = std::exchange(reply_, nullptr)) reply->ClientGone();
  core_->Remove(this);
}

void Connection::SetReadDeadline(Clock::time_point deadline) {
  read_deadline_ = deadline;
  ArmTimer();
}

// Deadlines move with every request and every write, and mostly to later: the timer goes off at one
// that was valid once, and is then set anew.
void Connection::ArmTimer() {
  const Clock::time_point next = std::min(read_deadline_, write_deadline_);
  if (next >= timer_at_) return;
  timer_at_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const error_code& error) { self->OnTimer(error); });
}

// The system takes no more from us while it has megabytes for a client that reads, but reads
// slowly.
bool Connection::HasClientTakenBytes() {
  int n_bytes = 0;
  if (ioctl(socket_.native_handle(), SIOCOUTQ, &n_bytes) != 0) return false;
  return n_bytes < std::exchange(n_queued_bytes_, n_bytes);
}

void Connection::OnTimer(const error_code& error) {
  if (is_closed_ || error) return;
  timer_at_ = kNever;
  const Clock::time_point now = Clock::now();
  if (write_deadline_ <= now) {
    if (!HasClientTakenBytes()) return Close();
    write_deadline_ = now + core_->options().write_timeout;
  }
  if (read_deadline_ <= now) {
    read_deadline_ = kNever;
    if (is_lingering_ || reader_->phase() == RequestReader::Phase::kBeforeRequest) return Close();
    Refuse(408, "the request did not come within the time that the server waits");
  }
  ArmTimer();
}

}  // namespace kvlathe::http
