// Threads of handlers and the connection share the state of one answer: what was given to it and
// has not left, and whether it has ended or its client is gone. Replies are how handlers hold it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/http/http_exchange.h"
#include "server/http/response_head.h"

namespace kvlathe::http {

// What a reply needs of its connection and of the server. Any thread may call them, none blocks.
struct ReplyHooks {
  // Runs a task on the threads of the server, in the order of the calls.
  std::function<void(std::function<void()>)> post;
  // Posts that there is something to take.
  std::function<void()> flush;
  // Called once, when the answer has ended or the client is gone. May be empty.
  std::function<void()> on_end;
};

class ReplyState : public std::enable_shared_from_this<ReplyState> {
 public:
  ReplyState(AnswerFacts facts, int64_t max_buffered_bytes, ReplyHooks hooks);

  // As Reply has them; any thread.
  void Send(Response response);
  void BeginStream(StreamKind kind);
  bool Write(std::string bytes);
  void EndStream();
  int64_t n_waiting_bytes();
  void Post(std::function<void()> task);
  void OnGone(std::function<void()> on_gone);

  // Nobody will write any more: what has not begun is answered 500, a stream that has not ended
  // breaks off. Any thread.
  void Abandon();

  // The rest is for the connection.

  // What can be written now: head, then body.
  struct Output {
    std::string head;
    std::string body;
    bool is_last = false;     // the answer ends with it
    bool must_close = false;  // and the connection too
    bool is_empty() const { return head.empty() && body.empty(); }
  };
  // `keep_alive`: whether the connection may go on behind this answer.
  Output Take(bool keep_alive);
  // Of what was taken, this much has not been written.
  void SetUnsent(int64_t n_bytes);
  bool has_ended();
  bool is_dropped();  // the client let too much wait: close at once
  void ClientGone();

 private:
  enum class Phase { kNothing, kResponse, kStream, kEndedStream, kBrokenStream };

  bool HasEnded() const;  // under the lock
  // Both unlock before they call anybody. End: the answer has ended, as `phase` says.
  void RequestFlush(std::unique_lock<std::mutex> lock);
  void End(Phase phase, std::unique_lock<std::mutex> lock);
  void TakeStream(bool keep_alive, Output* output);

  const AnswerFacts facts_;
  const int64_t max_buffered_bytes_;
  const ReplyHooks hooks_;

  std::mutex mutex_;
  Phase phase_ = Phase::kNothing;
  bool is_gone_ = false;     // nothing is taken any more
  bool is_dropped_ = false;  // for being slow
  bool is_over_ = false;     // on_end was called
  bool is_flush_posted_ = false;
  bool is_head_taken_ = false;
  bool is_all_taken_ = false;
  StreamKind stream_kind_ = StreamKind::kEvents;
  Response response_;
  std::string waiting_;         // of a stream, not yet taken
  int64_t n_unsent_bytes_ = 0;  // taken, not yet written
  std::function<void()> on_gone_;
};

// A handler's hold on an answer; the last one to go abandons it.
class ReplyHandle final : public Reply {
 public:
  explicit ReplyHandle(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}
  ~ReplyHandle() override { state_->Abandon(); }

  void Send(Response response) override { state_->Send(std::move(response)); }
  void BeginStream(StreamKind kind = StreamKind::kEvents) override { state_->BeginStream(kind); }
  bool Write(std::string bytes) override { return state_->Write(std::move(bytes)); }
  void EndStream() override { state_->EndStream(); }
  int64_t n_waiting_bytes() override { return state_->n_waiting_bytes(); }
  void Post(std::function<void()> task) override { state_->Post(std::move(task)); }
  void OnGone(std::function<void()> on_gone) override { state_->OnGone(std::move(on_gone)); }

 private:
  std::shared_ptr<ReplyState> state_;
};

}  // namespace kvlathe::http
