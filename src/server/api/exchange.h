// An exchange is one HTTP request on its way through the API: its answer, and what the observer is
// told of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "server/api/api_error.h"
#include "server/api/api_observer.h"
#include "server/http/http_exchange.h"

namespace kvlathe::api {

// Used by one thread at a time: the one that handles the request until tokens are asked for, the
// tasks of the reply (http::Reply::Post) from then on. One answer ends it, and further ones are
// dropped.
class Exchange {
 public:
  // `observer` (null: none) outlives the exchange.
  Exchange(http::Request request, std::shared_ptr<http::Reply> reply, std::string route,
           ApiObserver* observer);

  const http::Request& request() const { return request_; }
  const std::shared_ptr<http::Reply>& reply() const { return reply_; }
  // What the observer will be told; whoever knows fills it in.
  RequestEnded& record() { return record_; }
  double seconds() const { return since_begin_.Seconds(); }
  ApiObserver* observer() const { return observer_; }

  // The whole answer.
  void Send(const Json& body);
  void SendError(const ApiError& error);
  void SendError(const Status& status) { SendError(ApiErrorOf(status, /*is_refusal=*/true)); }
  void SendResponse(http::Response response);

  // A stream of events: "data: {...}", behind "event: NAME" where there is a name.
  void BeginStream(http::StreamKind kind = http::StreamKind::kEvents);
  void WriteEvent(const Json& data, std::string_view name = {});
  // Of a stream of JSON lines.
  void WriteLine(const Json& data) { Write(Dump(data) + "\n"); }
  // "data: [DONE]"
  void WriteDone() { Write("data: [DONE]\n\n"); }
  // A comment, where nothing was written for that long; JSON lines have none.
  void PingIfIdle(double seconds);
  void EndStream();
  // The answer is this error: all of it, or the last event of the stream.
  void Fail(const ApiError& error);
  // Whether the answer is a stream that has not ended.
  bool streams() const { return streams_; }

  // Notes an error for the observer that the stream itself tells the client.
  void NoteError(const ApiError& error);
  // The client went before the answer was whole.
  void CloseGone();

 private:
  void Write(std::string bytes);
  void Close();
  // Whether errors are texts, as in Ollama's API, and not objects.
  bool tells_errors_as_text() const { return record_.route.starts_with("/api/"); }

  http::Request request_;
  std::shared_ptr<http::Reply> reply_;
  ApiObserver* observer_;
  RequestEnded record_;
  Stopwatch since_begin_;
  Stopwatch since_write_;
  bool streams_ = false;
  http::StreamKind stream_kind_ = http::StreamKind::kEvents;
  bool is_closed_ = false;
};

}  // namespace kvlathe::api
