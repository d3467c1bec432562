#include "server/http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>
#include <utility>

#include "server/http/request_target.h"

namespace kvlathe::http {

namespace {

namespace beast_http = boost::beast::http;
using boost::beast::error_code;

constexpr int kMaxEmptyLines = 4;  // in front of a request
constexpr int64_t kReservedBytes = 64 << 10;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

bool IsDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

// Beast calls it with the parts of the request. A check that fails writes down why and sets an
// error, upon which Beast stops.
class RequestReader::Parser final : public beast_http::basic_parser<true> {
 public:
  Request request;
  int version = 0;
  bool has_transfer_encoding = false;
  int n_hosts = 0;
  int n_content_lengths = 0;
  int refusal_status = 0;
  std::string refusal_message;

 private:
  using view = boost::beast::string_view;

  void Refuse(int status, std::string message, error_code& error) {
    refusal_status = status;
    refusal_message = std::move(message);
    error = beast_http::error::bad_value;
  }

  void on_request_impl(beast_http::verb, view method, view target, int its_version,
                       error_code& error) override {
    request.method = method;
    version = its_version;
    Target parsed;
    std::string message;
    if (method == "CONNECT") return Refuse(501, "CONNECT is for proxies", error);
    if (!ParseTarget(request.method, target, &parsed, &message)) return Refuse(400, message, error);
    request.path = std::move(parsed.path);
    request.query = std::move(parsed.query);
  }

  void on_response_impl(int, view, int, error_code&) override {}

  void on_field_impl(beast_http::field field, view name, view value, error_code& error) override {
    if (field == beast_http::field::content_length) {
      if (++n_content_lengths > 1) return Refuse(400, "Content-Length comes twice", error);
      if (!IsDigits(value)) return Refuse(400, "Content-Length is not a number", error);
    } else if (field == beast_http::field::transfer_encoding) {
      has_transfer_encoding = true;
      if (Lower(value) != "chunked") {
        return Refuse(501, "the only Transfer-Encoding that is supported is 'chunked'", error);
      }
    } else if (field == beast_http::field::host) {
      if (++n_hosts > 1) return Refuse(400, "the header Host comes twice", error);
      if (!IsHost(value)) return Refuse(400, "the header Host names no host", error);
    }
    std::string& all = request.headers[Lower(name)];
    if (!all.empty()) all += ", ";
    all += value;
  }

  void on_header_impl(error_code&) override {}

  // Not called: Beast is told that there is no body.
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(view bytes, error_code&) override { return bytes.size(); }
  void on_chunk_header_impl(uint64_t, view, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, view bytes, error_code&) override { return bytes.size(); }
  void on_finish_impl(error_code&) override {}
};

RequestReader::RequestReader(const RequestLimits& limits)
    : limits_(limits), parser_(std::make_unique<Parser>()) {
  // Bodies are read here. Beast reads a quoted string in a chunk's extension on beyond the end of
  // its line, and counts the chunk against the limit once more when the rest has come.
  parser_->skip(true);
  // The head comes in one piece, which ScanHead has measured.
  parser_->header_limit(static_cast<uint32_t>(limits.max_header_bytes + 1));
}

RequestReader::~RequestReader() = default;

Request& RequestReader::request() { return parser_->request; }

bool RequestReader::is_http_1_0() const { return parser_->version < 11; }

bool RequestReader::keep_alive() const {
  return parser_->is_header_done() && parser_->keep_alive();
}

bool RequestReader::expects_continue() const {
  return !is_http_1_0() && !parser_->request.Header("expect").empty();
}

int64_t RequestReader::n_buffered_bytes() const {
  return static_cast<int64_t>(head_.size() + parser_->request.body.size());
}

void RequestReader::Refuse(int status, std::string message) {
  phase_ = Phase::kRefused;
  refusal_status_ = status;
  refusal_message_ = std::move(message);
}

size_t RequestReader::Read(std::string_view bytes) {
  size_t n_used = 0;
  while (n_used < bytes.size() && (phase_ == Phase::kBeforeRequest || phase_ == Phase::kHead)) {
    ScanHead(bytes[n_used++]);
  }
  if (phase_ == Phase::kBody && n_used < bytes.size()) n_used += ReadBody(bytes.substr(n_used));
  return n_used;
}

// One byte of the head. Lines are checked as they come: a client that sends nonsense learns it at
// once and not when the head would have ended.
void RequestReader::ScanHead(char c) {
  const auto byte = static_cast<unsigned char>(c);
  phase_ = Phase::kHead;
  head_ += c;
  if (after_cr_) {
    if (c != '\n') return Refuse(400, "a line of the head holds CR without LF");
    after_cr_ = false;
    return EndLine();
  }
  if (static_cast<int64_t>(head_.size()) > limits_.max_header_bytes) {
    if (n_lines_ == 0) {
      return Refuse(414, fmt::format("the request line is longer than the {} bytes of a whole head",
                                     limits_.max_header_bytes));
    }
    return Refuse(431, fmt::format("the head of the request is longer than {} bytes",
                                   limits_.max_header_bytes));
  }
  if (c == '\r') {
    after_cr_ = true;
    return;
  }
  if (c == '\n') return Refuse(400, "a line of the head ends with LF alone, not with CR LF");
  if ((byte < ' ' && c != '\t') || byte == 127) {
    return Refuse(400, fmt::format("the head holds the control character 0x{:02x}", byte));
  }
  if (n_line_bytes_ == 0 && n_lines_ > 0 && (c == ' ' || c == '\t')) {
    return Refuse(400, "a header line begins with a space");
  }
  ++n_line_bytes_;
}

void RequestReader::EndLine() {
  if (n_line_bytes_ > 0) {
    n_line_bytes_ = 0;
    if (++n_lines_ > limits_.max_headers + 1) {
      Refuse(431, fmt::format("the request has more than {} headers", limits_.max_headers));
    }
    return;
  }
  if (n_lines_ > 0) return ParseHead();
  // RFC 9112, section 2.2: some clients send an empty line behind a body.
  head_.clear();
  phase_ = Phase::kBeforeRequest;
  if (++n_empty_lines_ > kMaxEmptyLines) Refuse(400, "the request begins with empty lines");
}

void RequestReader::ParseHead() {
  error_code error;
  parser_->put(boost::asio::const_buffer(head_.data(), head_.size()), error);
  head_ = std::string();
  if (parser_->refusal_status != 0) {
    return Refuse(parser_->refusal_status, parser_->refusal_message);
  }
  if (error == beast_http::error::bad_version) {
    return Refuse(505, "the request line does not end with HTTP/1.0 or HTTP/1.1");
  }
  // Beast wants to see more only where a line is no header line.
  if (error) {
    return Refuse(400, fmt::format("the head of the request is malformed: {}", error.message()));
  }
  CheckHead();
}

void RequestReader::CheckHead() {
  const Parser& parser = *parser_;
  if (is_http_1_0() && parser.has_transfer_encoding) {
    return Refuse(400, "HTTP/1.0 has no Transfer-Encoding");
  }
  if (!is_http_1_0() && parser.n_hosts == 0) return Refuse(400, "the header Host is missing");
  if (expects_continue() && Lower(parser.request.Header("expect")) != "100-continue") {
    return Refuse(417, "the only Expect that is supported is 100-continue");
  }
  if (parser.has_transfer_encoding) {
    chunks_.emplace(limits_.max_body_bytes, limits_.max_header_bytes);
    phase_ = Phase::kBody;
    return;
  }
  const uint64_t n_body_bytes = parser.content_length().value_or(0);
  if (n_body_bytes > static_cast<uint64_t>(limits_.max_body_bytes)) {
    return Refuse(413, fmt::format("the body of the request is longer than {} bytes",
                                   limits_.max_body_bytes));
  }
  n_body_bytes_left_ = static_cast<int64_t>(n_body_bytes);
  parser_->request.body.reserve(static_cast<size_t>(std::min(n_body_bytes_left_, kReservedBytes)));
  phase_ = n_body_bytes_left_ > 0 ? Phase::kBody : Phase::kComplete;
}

size_t RequestReader::ReadBody(std::string_view bytes) {
  std::string& body = parser_->request.body;
  if (!chunks_) {
    const size_t n_used = std::min(bytes.size(), static_cast<size_t>(n_body_bytes_left_));
    body.append(bytes.substr(0, n_used));
    n_body_bytes_left_ -= static_cast<int64_t>(n_used);
    if (n_body_bytes_left_ == 0) phase_ = Phase::kComplete;
    return n_used;
  }
  const size_t n_used = chunks_->Read(bytes, &body);
  if (chunks_->refusal_status() != 0) {
    Refuse(chunks_->refusal_status(), chunks_->refusal_message());
  } else if (chunks_->is_complete()) {
    phase_ = Phase::kComplete;
  }
  return n_used;
}

}  // namespace kvlathe::http
