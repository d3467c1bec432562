// Tests use a reply without a connection, whose tasks run when the test says so.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/api/tool_support.h"
#include "server/http/http_exchange.h"

namespace kvlathe::api {

class FakeReply : public http::Reply {
 public:
  void Send(http::Response response) override {
    ++n_answers;
    sent = std::move(response);
  }
  void BeginStream(http::StreamKind kind = http::StreamKind::kEvents) override {
    ++n_answers;
    is_stream = true;
    stream_kind = kind;
  }
  bool Write(std::string bytes) override {
    if (is_gone) return false;
    stream += bytes;
    return true;
  }
  void EndStream() override { has_ended = true; }
  int64_t n_waiting_bytes() override { return 0; }
  void Post(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  void OnGone(std::function<void()> on_gone) override {
    on_gone_ = std::move(on_gone);
    if (is_gone) std::exchange(on_gone_, nullptr)();
  }

  // Those that are posted meanwhile as well.
  void RunTasks() {
    while (true) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  // The connection ends.
  void GoAway() {
    is_gone = true;
    if (on_gone_) std::exchange(on_gone_, nullptr)();
  }

  bool has_answered() const { return n_answers > 0; }
  Json SentJson() const { return Json::parse(sent.body); }
  // The data of the stream's events, as text: "[DONE]" and JSON.
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    for (size_t begin = 0; begin < stream.size();) {
      size_t end = stream.find("\n\n", begin);
      if (end == std::string::npos) end = stream.size();
      const std::string event = stream.substr(begin, end - begin);
      const size_t data = event.find("data: ");
      if (data != std::string::npos) events.push_back(event.substr(data + 6));
      begin = end + 2;
    }
    return events;
  }

  http::Response sent;
  std::string stream;
  bool is_stream = false;
  http::StreamKind stream_kind = http::StreamKind::kEvents;
  bool has_ended = false;
  bool is_gone = false;
  int n_answers = 0;

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::function<void()> on_gone_;
};

}  // namespace kvlathe::api
