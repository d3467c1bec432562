// The body of a request may come in chunks (RFC 9112, section 7.1), which are decoded as they
// arrive:
//   5;name=value CR LF  hello CR LF  0 CR LF  trailer: value CR LF  CR LF
// Extensions and trailers are checked and forgotten. Stricter than the RFC allows to be, where
// servers differ: no space around the size, and lines end with CR LF alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlathe::http {

class ChunkDecoder {
 public:
  ChunkDecoder(int64_t max_body_bytes, int64_t max_trailer_bytes)
      : max_body_bytes_(max_body_bytes), max_trailer_bytes_(max_trailer_bytes) {}

  // Appends to `body` what is body and returns how many of `bytes` belong to it: all of them, but
  // where it ends among them or is refused.
  size_t Read(std::string_view bytes, std::string* body);

  bool is_complete() const { return state_ == State::kComplete; }
  // 0, or the status (4xx) to refuse with, and why.
  int refusal_status() const { return refusal_status_; }
  const std::string& refusal_message() const { return refusal_message_; }

 private:
  enum class State {
    kSize,
    kExtension,
    kSizeEnd,  // LF is to come
    kData,
    kDataCr,  // the line end behind the data
    kDataEnd,
    kTrailerBegin,
    kTrailer,
    kTrailerEnd,
    kLastEnd,
    kComplete,
  };

  void ReadSize(char c, const std::string& body);
  void ReadExtension(char c);
  void ReadTrailer(char c);
  void Expect(char c, char wanted, State next);
  void Refuse(int status, std::string message);

  const int64_t max_body_bytes_;
  const int64_t max_trailer_bytes_;
  State state_ = State::kSize;
  int64_t n_chunk_bytes_ = 0;  // its size, then what is to come of it
  int n_digits_ = 0;
  int64_t n_extension_bytes_ = 0;  // of all chunks
  int64_t n_trailer_bytes_ = 0;
  bool has_colon_ = false;  // the trailer that is being read
  int refusal_status_ = 0;
  std::string refusal_message_;
};

}  // namespace kvlathe::http
