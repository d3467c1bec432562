// A RequestReader reads one HTTP/1.0 or HTTP/1.1 request from bytes as they arrive. It knows no
// socket, so that tests and the fuzzer feed it directly. Boost.Beast parses the head; what Beast is
// lenient about, and what two servers in a row could understand differently (request smuggling), is
// refused here: a line that ends without CR, a folded header line, control characters, a second
// Content-Length or one that is not digits, Content-Length beside Transfer-Encoding, any transfer
// coding but chunked, and a Host that is missing or comes twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_decoder.h"
#include "server/http/http_exchange.h"

namespace kvlathe::http {

// As in HttpServerOptions.
struct RequestLimits {
  int64_t max_header_bytes = 0;
  int max_headers = 0;
  int64_t max_body_bytes = 0;
};

class RequestReader {
 public:
  enum class Phase {
    kBeforeRequest,  // no byte of it yet
    kHead,
    kBody,
    kComplete,
    kRefused,  // see refusal_status; nothing more can be read on this connection
  };

  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();

  // Reads on and returns how many of `bytes` belong to this request: all of them, but for a request
  // that ends among them or is refused.
  size_t Read(std::string_view bytes);

  Phase phase() const { return phase_; }

  // From the end of the head on.
  bool is_http_1_0() const;
  bool keep_alive() const;
  bool expects_continue() const;  // Expect: 100-continue, of HTTP/1.1

  // What this object holds of the request, in bytes: never more than the limits and one call's
  // bytes.
  int64_t n_buffered_bytes() const;

  // What is known of the request; whole (but for id and peer) at kComplete, and then to be moved
  // from.
  Request& request();

  // The status (4xx or 5xx) and one line that says what is wrong, at kRefused.
  int refusal_status() const { return refusal_status_; }
  const std::string& refusal_message() const { return refusal_message_; }

 private:
  class Parser;

  void ScanHead(char c);
  void EndLine();
  void ParseHead();
  void CheckHead();
  size_t ReadBody(std::string_view bytes);
  void Refuse(int status, std::string message);

  RequestLimits limits_;
  std::unique_ptr<Parser> parser_;
  Phase phase_ = Phase::kBeforeRequest;
  std::string head_;                    // until it is whole
  std::optional<ChunkDecoder> chunks_;  // of a body that comes in chunks
  int64_t n_body_bytes_left_ = 0;       // of another one
  int64_t n_line_bytes_ = 0;
  int n_lines_ = 0;
  int n_empty_lines_ = 0;  // before the request
  bool after_cr_ = false;
  int refusal_status_ = 0;
  std::string refusal_message_;
};

}  // namespace kvlathe::http
