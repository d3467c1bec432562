#include "server/api/exchange.h"

#include <utility>

namespace kvlathe::api {

Exchange::Exchange(http::Request request, std::shared_ptr<http::Reply> reply, std::string route,
                   ApiObserver* observer)
    : request_(std::move(request)), reply_(std::move(reply)), observer_(observer) {
  record_.request_id = request_.id;
  record_.route = std::move(route);
}

void Exchange::Send(const Json& body) {
  http::Response response;
  response.body = Dump(body);
  SendResponse(std::move(response));
}

void Exchange::SendError(const ApiError& error) {
  NoteError(error);
  http::Response response = ErrorResponse(error);
  if (tells_errors_as_text()) response.body = Dump({{"error", error.message}});
  SendResponse(std::move(response));
}

void Exchange::SendResponse(http::Response response) {
  if (is_closed_) return;
  record_.http_status = response.status;
  reply_->Send(std::move(response));
  Close();
}

void Exchange::BeginStream(http::StreamKind kind) {
  stream_kind_ = kind;
  streams_ = true;
  record_.http_status = 200;
  record_.is_stream = true;
  reply_->BeginStream(kind);
  since_write_.Restart();
}

void Exchange::WriteEvent(const Json& data, std::string_view name) {
  std::string text;
  if (!name.empty()) text = fmt::format("event: {}\n", name);
  text += "data: ";
  text += Dump(data);
  text += "\n\n";
  Write(std::move(text));
}

void Exchange::Write(std::string bytes) {
  if (!streams_) return;
  since_write_.Restart();
  reply_->Write(std::move(bytes));  // OnGone tells whether the client is gone
}

void Exchange::PingIfIdle(double seconds) {
  if (!streams_ || stream_kind_ != http::StreamKind::kEvents) return;
  if (since_write_.Seconds() >= seconds) Write(": ping\n\n");
}

void Exchange::EndStream() {
  if (!streams_) return;
  streams_ = false;
  reply_->EndStream();
  Close();
}

void Exchange::Fail(const ApiError& error) {
  if (!streams_) return SendError(error);
  if (stream_kind_ == http::StreamKind::kJsonLines) {
    WriteLine({{"error", error.message}});
  } else {
    WriteEvent(ErrorJson(error));
  }
  EndStream();
}

void Exchange::NoteError(const ApiError& error) {
  record_.error_code = error.code.empty() ? error.type : error.code;
  record_.error_message = error.message;
}

void Exchange::CloseGone() {
  if (is_closed_) return;
  streams_ = false;
  record_.http_status = 499;
  Close();
}

void Exchange::Close() {
  is_closed_ = true;
  record_.seconds = seconds();
  if (observer_ != nullptr) observer_->OnEnded(record_);
}

}  // namespace kvlathe::api
