#include "server/http/reply_state.h"

#include <fmt/format.h>

#include <exception>

#include "server/http/refusal_response.h"

namespace kvlathe::http {

ReplyState::ReplyState(AnswerFacts facts, int64_t max_buffered_bytes, ReplyHooks hooks)
    : facts_(std::move(facts)), max_buffered_bytes_(max_buffered_bytes), hooks_(std::move(hooks)) {}

void ReplyState::RequestFlush(std::unique_lock<std::mutex> lock) {
  if (is_flush_posted_) return;
  is_flush_posted_ = true;
  lock.unlock();
  hooks_.flush();
}

void ReplyState::End(Phase phase, std::unique_lock<std::mutex> lock) {
  phase_ = phase;
  const bool is_first = !is_over_;
  is_over_ = true;
  // What it holds may call us when it is destroyed: not under the lock.
  const std::function<void()> on_gone = std::exchange(on_gone_, nullptr);
  RequestFlush(std::move(lock));
  if (is_first && hooks_.on_end) hooks_.on_end();
}

void ReplyState::Send(Response response) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kNothing || is_gone_) return;
  response_ = std::move(response);
  End(Phase::kResponse, std::move(lock));
}

void ReplyState::BeginStream(StreamKind kind) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kNothing || is_gone_) return;
  stream_kind_ = kind;
  phase_ = Phase::kStream;
  RequestFlush(std::move(lock));
}

bool ReplyState::Write(std::string bytes) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kStream || is_gone_) return false;
  if (facts_.is_head || bytes.empty()) return true;
  const int64_t n_waiting = static_cast<int64_t>(waiting_.size()) + n_unsent_bytes_;
  const bool is_slow =
      n_waiting > 0 && n_waiting + static_cast<int64_t>(bytes.size()) > max_buffered_bytes_;
  if (is_slow) {
    is_gone_ = is_dropped_ = true;
    waiting_ = std::string();
    is_flush_posted_ =
        false;  // the connection may be writing, and has to hear of this all the same
  } else if (waiting_.empty()) {
    waiting_ = std::move(bytes);
  } else {
    waiting_ += bytes;
  }
  RequestFlush(std::move(lock));
  return !is_slow;
}

void ReplyState::EndStream() {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kStream || is_gone_) return;
  End(Phase::kEndedStream, std::move(lock));
}

int64_t ReplyState::n_waiting_bytes() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size()) + n_unsent_bytes_;
}

void ReplyState::Abandon() {
  std::unique_lock lock(mutex_);
  if (is_gone_) return;
  if (phase_ == Phase::kNothing) {
    response_ = RefusalResponse(500, "the server gave no answer to this request");
    End(Phase::kResponse, std::move(lock));
  } else if (phase_ == Phase::kStream) {
    End(Phase::kBrokenStream, std::move(lock));
  }
}

void ReplyState::Post(std::function<void()> task) {
  hooks_.post([self = shared_from_this(), task = std::move(task)] {
    try {
      task();
    } catch (const std::exception&) {
      self->Abandon();
    }
  });
}

void ReplyState::OnGone(std::function<void()> on_gone) {
  std::unique_lock lock(mutex_);
  if (HasEnded()) return;
  if (!is_gone_) {
    on_gone_ = std::move(on_gone);
    return;
  }
  lock.unlock();
  Post(std::move(on_gone));
}

void ReplyState::ClientGone() {
  std::unique_lock lock(mutex_);
  is_gone_ = true;
  waiting_ = std::string();
  const bool is_first = !is_over_;
  is_over_ = true;
  const std::function<void()> on_gone = std::exchange(on_gone_, nullptr);
  lock.unlock();
  if (on_gone) on_gone();
  if (is_first && hooks_.on_end) hooks_.on_end();
}

bool ReplyState::HasEnded() const { return phase_ != Phase::kNothing && phase_ != Phase::kStream; }

bool ReplyState::has_ended() {
  const std::lock_guard lock(mutex_);
  return HasEnded();
}

bool ReplyState::is_dropped() {
  const std::lock_guard lock(mutex_);
  return is_dropped_;
}

void ReplyState::SetUnsent(int64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  n_unsent_bytes_ = n_bytes;
}

ReplyState::Output ReplyState::Take(bool keep_alive) {
  const std::lock_guard lock(mutex_);
  Output output;
  is_flush_posted_ = false;
  if (phase_ == Phase::kNothing || is_gone_ || is_all_taken_) return output;
  if (phase_ == Phase::kResponse) {
    output.head = ResponseHead(response_, facts_, keep_alive);
    if (!facts_.is_head && !HasNoBody(response_.status)) output.body = std::move(response_.body);
    output.is_last = true;
    output.must_close = !keep_alive;
  } else {
    TakeStream(keep_alive, &output);
  }
  is_all_taken_ = output.is_last;
  n_unsent_bytes_ = static_cast<int64_t>(output.head.size() + output.body.size());
  return output;
}

void ReplyState::TakeStream(bool keep_alive, Output* output) {
  const bool is_chunked = !facts_.is_http_1_0;
  if (!is_head_taken_) output->head = StreamHead(stream_kind_, facts_, keep_alive && is_chunked);
  is_head_taken_ = true;
  output->is_last = phase_ != Phase::kStream;
  output->must_close = !keep_alive || !is_chunked || phase_ == Phase::kBrokenStream;
  if (is_chunked && !waiting_.empty()) {
    output->head += fmt::format("{:x}\r\n", waiting_.size());
    waiting_ += "\r\n";
  }
  output->body = std::exchange(waiting_, std::string());
  if (is_chunked && !facts_.is_head && phase_ == Phase::kEndedStream) output->body += "0\r\n\r\n";
}

}  // namespace kvlathe::http
