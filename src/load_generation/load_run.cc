#include "load_generation/load_run.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cmath>
#include <deque>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace kvlathe {
namespace {

constexpr size_t kMostErrorBody = 65536;

// Reads the answer to one request into its record.
class AnswerReader {
 public:
  AnswerReader(RequestRecord* record, const Stopwatch& clock) : record_(record), clock_(clock) {}

  void Take(int status, std::string_view bytes) {
    if (status != 200) {
      error_body_ += bytes.substr(0, kMostErrorBody - std::min(kMostErrorBody, error_body_.size()));
      return;
    }
    const double now = clock_.Seconds() - record_->start_s;
    events_.Feed(bytes);
    while (auto data = events_.Next()) TakeEvent(ReadStreamEvent(*data), now);
  }

  void End(const HttpEnd& end) {
    if (!end.failure.empty()) {
      SetError(end.failure, end.error);
    } else if (end.status != 200) {
      SetError(fmt::format("http {}", end.status), ErrorTextOf(error_body_));
    } else if (!has_choice_) {
      SetError("bad response", "a stream without a choice");
    } else if (!is_done_) {
      SetError("cut short", "the stream ended before [DONE]");
    }
    if (!record_->is_counted_by_server) record_->n_output = n_pieces_;
    if (record_->ttft_s == 0) record_->ttft_s = record_->latency_s;  // tokens without any text
  }

 private:
  void SetError(std::string kind, std::string error) {
    if (!record_->succeeded()) return;  // the first says most
    record_->error_kind = std::move(kind);
    record_->error = std::move(error);
  }

  void TakeEvent(const StreamEvent& event, double now) {
    if (event.is_done) is_done_ = true;
    if (event.is_broken) SetError("bad response", "an event that is not JSON");
    if (!event.error.empty()) SetError("stream error", event.error);
    if (event.n_input.has_value()) record_->n_input = *event.n_input;
    if (event.n_output.has_value()) {
      record_->n_output = *event.n_output;
      record_->is_counted_by_server = true;
    }
    if (!event.has_choice) return;
    has_choice_ = true;
    record_->latency_s = now;
    if (event.text.empty()) return;
    if (n_pieces_++ == 0) {
      record_->ttft_s = now;
    } else {
      record_->itl_s.push_back(now - last_s_);
    }
    last_s_ = now;
    record_->text += event.text;
  }

  RequestRecord* record_;
  const Stopwatch& clock_;
  EventReader events_;
  std::string error_body_;
  double last_s_ = 0;
  int n_pieces_ = 0;
  bool has_choice_ = false, is_done_ = false;
};

class LoadRunner {
 public:
  LoadRunner(const LoadTarget& target, const Workload& workload, const LoadOptions& options,
             std::vector<boost::asio::ip::tcp::endpoint> endpoints)
      : target_(target),
        workload_(workload),
        options_(options),
        endpoints_(std::move(endpoints)),
        timer_(io_) {}

  LoadRecords Run() {
    clock_.Restart();
    if (std::isfinite(options_.arrivals.rate)) {
      times_ = ArrivalTimes(options_.arrivals, options_.n_requests);
      WaitForArrival();
    } else {
      SendWhatMay();
    }
    io_.run();
    LoadRecords records{{}, clock_.Seconds(), n_reconnected_};
    for (auto& record : records_) records.requests.push_back(std::move(*record));
    return records;
  }

 private:
  bool is_open_loop() const { return !times_.empty(); }

  void WaitForArrival() {
    if (n_arrived_ == static_cast<int64_t>(times_.size())) return;
    timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(times_[static_cast<size_t>(n_arrived_)] - clock_.Seconds())));
    timer_.async_wait([this](const boost::system::error_code&) {
      const double now = clock_.Seconds();
      while (n_arrived_ < static_cast<int64_t>(times_.size()) &&
             times_[static_cast<size_t>(n_arrived_)] <= now) {
        waiting_.push_back(AddRecord(times_[static_cast<size_t>(n_arrived_)]));
      }
      SendWhatMay();
      WaitForArrival();
    });
  }

  RequestRecord* AddRecord(double arrival_s) {
    records_.push_back(std::make_unique<RequestRecord>());
    records_.back()->arrival_s = arrival_s;
    ++n_arrived_;
    return records_.back().get();
  }

  bool MayBeginMore() const {
    if (options_.duration_s > 0) return clock_.Seconds() < options_.duration_s;
    return n_arrived_ < options_.n_requests;
  }

  void SendWhatMay() {
    while (options_.max_concurrency == 0 || n_active_ < options_.max_concurrency) {
      if (!is_open_loop()) {
        if (!MayBeginMore()) return;
        Send(AddRecord(clock_.Seconds()));
      } else {
        if (waiting_.empty()) return;
        Send(waiting_.front());
        waiting_.pop_front();
      }
    }
  }

  void Send(RequestRecord* record) {
    const LoadRequest request = workload_.RequestAt(options_.first_index + n_sent_++);
    HttpCall call{"POST", target_.endpoint, RequestBody(request, target_.style), target_.api_key,
                  target_.timeout_s};
    record->n_input = request.n_input;
    record->n_asked = request.n_output;
    std::shared_ptr<HttpConnection> connection;
    if (idle_.empty()) {
      connection = std::make_shared<HttpConnection>(&io_, target_.server, endpoints_);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    ++n_active_;
    record->start_s = clock_.Seconds();
    auto reader = std::make_shared<AnswerReader>(record, clock_);
    connection->Start(
        call, [reader](int status, std::string_view bytes) { reader->Take(status, bytes); },
        [this, reader, connection](const HttpEnd& end) {
          reader->End(end);
          if (end.was_reconnected) ++n_reconnected_;
          --n_active_;
          idle_.push_back(connection);
          ++n_ended_;
          if (options_.on_ended) options_.on_ended(n_ended_);
          GoOn(end.failure == "connect");
        });
  }

  // Not from inside a call: a connection that fails at once would call ever deeper. Where nobody
  // listens a client waits a little, or a closed loop would fail without end.
  void GoOn(bool waits) {
    if (!waits) {
      boost::asio::post(io_, [this] { SendWhatMay(); });
      return;
    }
    auto pause = std::make_shared<boost::asio::steady_timer>(io_, std::chrono::milliseconds(100));
    pause->async_wait([this, pause](const boost::system::error_code&) { SendWhatMay(); });
  }

  const LoadTarget& target_;
  const Workload& workload_;
  const LoadOptions& options_;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints_;
  boost::asio::io_context io_;
  boost::asio::steady_timer timer_;
  Stopwatch clock_;
  std::vector<double> times_;  // of an open loop
  std::vector<std::unique_ptr<RequestRecord>> records_;
  std::deque<RequestRecord*> waiting_;
  std::vector<std::shared_ptr<HttpConnection>> idle_;
  int n_active_ = 0;
  int64_t n_arrived_ = 0, n_sent_ = 0, n_ended_ = 0, n_reconnected_ = 0;
};

}  // namespace

StatusOr<LoadRecords> RunLoad(const LoadTarget& target, const Workload& workload,
                              const LoadOptions& options) {
  KVL_ASSIGN_OR_RETURN(auto endpoints, Resolve(target.server));
  return LoadRunner(target, workload, options, std::move(endpoints)).Run();
}

}  // namespace kvlathe
