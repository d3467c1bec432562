// What a client may send on one connection: any bytes are requests and perhaps a refusal, the same
// ones whether they come at once or in pieces. What is read is within the limits, holds nothing
// that could mean something else to another server, and reads the same when it is written down
// again. The first byte of the input is the length of the pieces.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http/request_reader.h"

namespace {

using kvlathe::http::Request;
using kvlathe::http::RequestLimits;
using kvlathe::http::RequestReader;
using Phase = RequestReader::Phase;

constexpr RequestLimits kLimits{.max_header_bytes = 1024, .max_headers = 16, .max_body_bytes = 512};

struct Transcript {
  std::vector<std::string> requests;  // written down by Describe
  int refusal_status = 0;
};

// As another client would send it: with Content-Length, whichever way its body came.
std::string Rewrite(const Request& request, bool is_http_1_0) {
  std::string text = request.method + " " + request.path;
  if (!request.query.empty()) text += "?" + request.query;
  text += is_http_1_0 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n";
  for (const auto& [name, value] : request.headers) {
    if (name == "content-length" || name == "transfer-encoding") continue;
    text += name + ": " + value + "\r\n";
  }
  return text + "Content-Length: " + std::to_string(request.body.size()) + "\r\n\r\n" +
         request.body;
}

void CheckRequest(const Request& request) {
  KVL_CHECK(!request.method.empty());
  KVL_CHECK(request.path == "*" || request.path.starts_with('/'));
  for (const char c : request.path + request.query) KVL_CHECK(c > ' ' && c < 127);
  KVL_CHECK(static_cast<int64_t>(request.body.size()) <= kLimits.max_body_bytes);
  KVL_CHECK(static_cast<int>(request.headers.size()) <= kLimits.max_headers);
  for (const auto& [name, value] : request.headers) {
    KVL_CHECK(!name.empty());
    for (const char c : name) KVL_CHECK(c > ' ' && c < 127 && c != ':' && std::isupper(c) == 0);
    for (const char c : value) {
      KVL_CHECK(c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != 127));
    }
  }
}

void CheckRewritten(const Request& request, bool is_http_1_0) {
  const RequestLimits wider{.max_header_bytes = 2 * kLimits.max_header_bytes,
                            .max_headers = kLimits.max_headers + 1,
                            .max_body_bytes = kLimits.max_body_bytes};
  RequestReader reader(wider);
  const std::string text = Rewrite(request, is_http_1_0);
  KVL_CHECK(reader.Read(text) == text.size());
  KVL_CHECK(reader.phase() == Phase::kComplete);
  KVL_CHECK(reader.request().method == request.method);
  KVL_CHECK(reader.request().path == request.path);
  KVL_CHECK(reader.request().query == request.query);
  KVL_CHECK(reader.request().body == request.body);
}

Transcript ReadAll(std::string_view bytes, size_t piece) {
  Transcript transcript;
  std::optional<RequestReader> reader(kLimits);
  std::string_view input;  // of this piece, what is not read yet
  while (!bytes.empty() || !input.empty()) {
    if (input.empty()) {
      input = bytes.substr(0, piece);
      bytes.remove_prefix(input.size());
    }
    const size_t n_used = reader->Read(input);
    KVL_CHECK(n_used > 0 && n_used <= input.size());
    input.remove_prefix(n_used);
    KVL_CHECK(reader->n_buffered_bytes() <=
              kLimits.max_header_bytes + kLimits.max_body_bytes + static_cast<int64_t>(n_used));
    if (reader->phase() == Phase::kRefused) {
      transcript.refusal_status = reader->refusal_status();
      KVL_CHECK(transcript.refusal_status >= 400 && transcript.refusal_status < 600);
      KVL_CHECK(!reader->refusal_message().empty());
      return transcript;
    }
    if (reader->phase() != Phase::kComplete) {
      KVL_CHECK(input.empty());
      continue;
    }
    CheckRequest(reader->request());
    CheckRewritten(reader->request(), reader->is_http_1_0());
    transcript.requests.push_back(Rewrite(reader->request(), reader->is_http_1_0()) +
                                  (reader->keep_alive() ? "+" : "-"));
    reader.emplace(kLimits);
  }
  return transcript;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, n_bytes - 1);
  const Transcript whole = ReadAll(bytes, n_bytes);
  const Transcript pieces = ReadAll(bytes, std::max<size_t>(data[0], 1));
  KVL_CHECK(whole.requests == pieces.requests);
  KVL_CHECK(whole.refusal_status == pieces.refusal_status);
  return 0;
}
