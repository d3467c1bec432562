#include "server/http/chunk_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvlathe::http {

namespace {

constexpr int64_t kMaxExtensionBytes = 4096;
constexpr int kMaxDigits = 16;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsText(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= ' ' && byte != 127);
}

}  // namespace

void ChunkDecoder::Refuse(int status, std::string message) {
  refusal_status_ = status;
  refusal_message_ = std::move(message);
}

void ChunkDecoder::Expect(char c, char wanted, State next) {
  if (c != wanted)
    return Refuse(400, "a line between the chunks of the body does not end with CR LF");
  state_ = next;
}

size_t ChunkDecoder::Read(std::string_view bytes, std::string* body) {
  size_t n_used = 0;
  while (n_used < bytes.size() && refusal_status_ == 0 && !is_complete()) {
    if (state_ == State::kData) {
      const auto n = std::min(static_cast<size_t>(n_chunk_bytes_), bytes.size() - n_used);
      body->append(bytes.substr(n_used, n));
      n_used += n;
      n_chunk_bytes_ -= static_cast<int64_t>(n);
      if (n_chunk_bytes_ == 0) state_ = State::kDataCr;
      continue;
    }
    const char c = bytes[n_used++];
    switch (state_) {
      case State::kSize:
        ReadSize(c, *body);
        break;
      case State::kExtension:
        ReadExtension(c);
        break;
      case State::kSizeEnd:
        Expect(c, '\n', n_chunk_bytes_ > 0 ? State::kData : State::kTrailerBegin);
        break;
      case State::kDataCr:
        Expect(c, '\r', State::kDataEnd);
        break;
      case State::kDataEnd:
        n_digits_ = 0;
        n_chunk_bytes_ = 0;
        Expect(c, '\n', State::kSize);
        break;
      case State::kTrailerBegin:
      case State::kTrailer:
        ReadTrailer(c);
        break;
      case State::kTrailerEnd:
        Expect(c, '\n', State::kTrailerBegin);
        break;
      case State::kLastEnd:
        Expect(c, '\n', State::kComplete);
        break;
      case State::kData:
      case State::kComplete:
        break;  // not here
    }
  }
  return n_used;
}

void ChunkDecoder::ReadSize(char c, const std::string& body) {
  const int digit = HexDigit(c);
  if (digit >= 0) {
    if (++n_digits_ > kMaxDigits)
      return Refuse(400, "the size of a chunk of the body has too many digits");
    // Both are at most max_body_bytes here, which is far from overflowing.
    n_chunk_bytes_ = n_chunk_bytes_ * 16 + digit;
    if (n_chunk_bytes_ > max_body_bytes_ - static_cast<int64_t>(body.size())) {
      Refuse(413, fmt::format("the body of the request is longer than {} bytes", max_body_bytes_));
    }
    return;
  }
  if (n_digits_ == 0 || (c != '\r' && c != ';')) {
    return Refuse(400, "the size of a chunk of the body is not a hexadecimal number");
  }
  state_ = c == ';' ? State::kExtension : State::kSizeEnd;
}

void ChunkDecoder::ReadExtension(char c) {
  if (c == '\r') {
    state_ = State::kSizeEnd;
  } else if (!IsText(c)) {
    Refuse(400, "a chunk's extension holds a control character");
  } else if (++n_extension_bytes_ > kMaxExtensionBytes) {
    Refuse(431, fmt::format("the extensions of the body's chunks are longer than {} bytes",
                            kMaxExtensionBytes));
  }
}

void ChunkDecoder::ReadTrailer(char c) {
  const bool is_first = state_ == State::kTrailerBegin;
  if (is_first) has_colon_ = false;
  if (c == '\r') {
    if (!is_first && !has_colon_) return Refuse(400, "a trailer of the body has no colon");
    state_ = is_first ? State::kLastEnd : State::kTrailerEnd;
    return;
  }
  state_ = State::kTrailer;
  if (!IsText(c)) return Refuse(400, "a trailer of the body holds a control character");
  if (is_first && (c == ' ' || c == '\t' || c == ':')) {
    return Refuse(400, "a trailer of the body has no name");
  }
  has_colon_ = has_colon_ || c == ':';
  if (++n_trailer_bytes_ > max_trailer_bytes_) {
    Refuse(431,
           fmt::format("the trailers of the body are longer than {} bytes", max_trailer_bytes_));
  }
}

}  // namespace kvlathe::http
