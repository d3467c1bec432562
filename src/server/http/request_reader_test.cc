#include "server/http/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlathe::http {
namespace {

using Phase = RequestReader::Phase;
using ::testing::HasSubstr;

constexpr RequestLimits kLimits{.max_header_bytes = 1024, .max_headers = 10, .max_body_bytes = 100};

// Feeds `text` in pieces of `piece` bytes, of which the reader may leave some.
size_t Feed(std::string_view text, size_t piece, RequestReader* reader) {
  size_t n_used = 0;
  while (n_used < text.size()) {
    const std::string_view next = text.substr(n_used, piece);
    const size_t n = reader->Read(next);
    n_used += n;
    if (n < next.size()) break;
  }
  return n_used;
}

std::string Get(const std::string& headers, const std::string& target = "/") {
  return "GET " + target + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
}

std::string Chunked(const std::string& body) {
  return "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
}

TEST(RequestReaderTest, RequestWithBodyIsRead) {
  const std::string text =
      "POST /v1/completions?a=b&c HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: 5\r\n"
      "X-One:  1 \r\nAccept: a\r\naccept: b\r\nX-Eight: \xe9\r\n\r\nhello";
  for (const size_t piece : {size_t{1}, size_t{7}, text.size() + 3}) {
    RequestReader reader(kLimits);
    EXPECT_EQ(Feed(text + "GET", piece, &reader), text.size());
    ASSERT_EQ(reader.phase(), Phase::kComplete) << reader.refusal_message();
    const Request& request = reader.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.query, "a=b&c");
    EXPECT_EQ(request.Header("x-one"), "1");
    EXPECT_EQ(request.Header("accept"), "a, b");
    EXPECT_EQ(request.Header("x-eight"), "\xe9");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_FALSE(reader.is_http_1_0());
  }
}

TEST(RequestReaderTest, ChunksExtensionsAndTrailersAreRead) {
  const std::string text = Chunked(
      "3\r\nabc\r\n02;name=\"a b\";x\r\nde\r\n0;last\r\nContent-Length: 9\r\nX-Trailer: 1\r\n\r\n");
  for (const size_t piece : {size_t{1}, size_t{5}, text.size() + 3}) {
    RequestReader reader(kLimits);
    EXPECT_EQ(Feed(text + "GET", piece, &reader), text.size());
    ASSERT_EQ(reader.phase(), Phase::kComplete) << reader.refusal_message();
    EXPECT_EQ(reader.request().body, "abcde");
    EXPECT_EQ(reader.request().Header("x-trailer"), "");
    EXPECT_EQ(reader.request().Header("content-length"), "");
  }
}

struct TargetCase {
  std::string method;
  std::string target;
  std::string path;
  std::string query;
};

TEST(RequestReaderTest, AllFormsOfTargetsAreRead) {
  const std::vector<TargetCase> cases = {
      {"GET", "/a%20b?", "/a%20b", ""},
      {"GET", "http://host:8080/v1/models?x=1", "/v1/models", "x=1"},
      {"GET", "HTTPS://[::1]", "/", ""},
      {"GET", "http://host?x", "/", "x"},
      {"OPTIONS", "*", "*", ""},
      {"BREW", "//a/../b", "//a/../b", ""},
  };
  for (const TargetCase& one : cases) {
    RequestReader reader(kLimits);
    Feed(one.method + " " + one.target + " HTTP/1.1\r\nHost: a\r\n\r\n", 1000, &reader);
    ASSERT_EQ(reader.phase(), Phase::kComplete) << one.target << reader.refusal_message();
    EXPECT_EQ(reader.request().method, one.method);
    EXPECT_EQ(reader.request().path, one.path);
    EXPECT_EQ(reader.request().query, one.query);
  }
}

TEST(RequestReaderTest, OldAndNewClientsSayWhetherTheyStay) {
  const auto keeps = [](const std::string& text) {
    RequestReader reader(kLimits);
    Feed(text, 1000, &reader);
    EXPECT_EQ(reader.phase(), Phase::kComplete) << text << reader.refusal_message();
    return reader.keep_alive();
  };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_TRUE(keeps("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"));
}

TEST(RequestReaderTest, ExpectationsAreKnown) {
  RequestReader reader(kLimits);
  Feed(Get("Expect: 100-Continue\r\nContent-Length: 3\r\n"), 1000, &reader);
  EXPECT_EQ(reader.phase(), Phase::kBody);
  EXPECT_TRUE(reader.expects_continue());
  RequestReader plain(kLimits);
  Feed(Get("Content-Length: 3\r\n"), 1000, &plain);
  EXPECT_EQ(plain.phase(), Phase::kBody);
  EXPECT_FALSE(plain.expects_continue());
}

struct RefusedCase {
  int status;
  std::string text;
  std::string message;
};

// What one server takes for the end of a request and another does not is how requests are smuggled
// past a proxy.
std::vector<RefusedCase> SmugglingCases() {
  return {
      {400, Get("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", "malformed"},
      {400, Get("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n") + "0\r\n\r\n", "malformed"},
      {400, Get("Content-Length: 3\r\nContent-Length: 3\r\n") + "abc", "twice"},
      {400, Get("Content-Length: 3\r\nContent-Length: 4\r\n") + "abc", "malformed"},
      {400, Get("Content-Length: 3, 3\r\n") + "abc", "not a number"},
      {400, Get("Content-Length: +3\r\n") + "abc", "malformed"},
      {400, Get("Content-Length: -3\r\n") + "abc", "malformed"},
      {400, Get("Content-Length: 0x3\r\n") + "abc", "malformed"},
      {400, Get("Content-Length: 3 3\r\n") + "abc", "malformed"},
      {400, Get("Content-Length:\r\n") + "abc", "malformed"},
      {400, Get("Content-Length: 99999999999999999999999\r\n"), "malformed"},
      {400, Get("Content-Length : 3\r\n") + "abc", "malformed"},
      {400, Get("Content-Length\r\n"), "malformed"},
      {501, Get("Transfer-Encoding: gzip, chunked\r\n"), "chunked"},
      {501, Get("Transfer-Encoding: identity\r\n"), "chunked"},
      {501, Get("Transfer-Encoding: xchunked\r\n"), "chunked"},
      {501, Get("Transfer-Encoding: chunked, identity\r\n"), "chunked"},
      {400, Get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), "malformed"},
      {400, Get("Transfer-Encoding:\x0b chunked\r\n"), "0x0b"},
      {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"},
      {400, "GET / HTTP/1.1\nHost: a\n\n", "LF alone"},
      {400, "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", "LF alone"},
      {400, "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "CR without LF"},
      {400, Get("X: a\r\n b\r\n"), "begins with a space"},
      {400, "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "begins with a space"},
      {400, Chunked("3\nabc\r\n0\r\n\r\n"), "hexadecimal"},
      {400, Chunked("3\rabc\r\n0\r\n\r\n"), "CR LF"},
      {400, Chunked("3\r\nabcd\r\n0\r\n\r\n"), "CR LF"},
      {400, Chunked("3\r\nabc0\r\n\r\n"), "CR LF"},
      {400, Chunked("3\r\nabc\n0\r\n\r\n"), "CR LF"},
      {400, Chunked("3 \r\nabc\r\n0\r\n\r\n"), "hexadecimal"},
      {400, Chunked(" 3\r\nabc\r\n0\r\n\r\n"), "hexadecimal"},
      {400, Chunked("-3\r\nabc\r\n0\r\n\r\n"), "hexadecimal"},
      {400, Chunked("0x3\r\nabc\r\n0\r\n\r\n"), "hexadecimal"},
      {400, Chunked(";a\r\n\r\n"), "hexadecimal"},
      {400, Chunked("\r\n\r\n"), "hexadecimal"},
      {400, Chunked("00000000000000003\r\nabc"), "too many digits"},
      {400, Chunked("3;a=\"\nabc\r\n0\r\n\r\n"), "control character"},
      {400, Chunked("0\r\nX-A\r\n\r\n"), "no colon"},
      {400, Chunked("0\r\n : b\r\n\r\n"), "no name"},
      {400, Chunked("0\r\nX: a\nY: b\r\n\r\n"), "control character"},
      {400, Chunked("0\r\n\rX"), "CR LF"},
  };
}

std::vector<RefusedCase> OtherCases() {
  const std::string long_word(2000, 'x');
  std::string many;
  for (int i = 0; i < 11; ++i) many += "X-H: 1\r\n";
  return {
      {400, "GET / HTTP/1.1\r\n\r\n", "Host is missing"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "Host comes twice"},
      {400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "names no host"},
      {400, Get(std::string("X: a\0b\r\n", 8)), "0x00"},
      {400, Get("X\xe9: a\r\n"), "malformed"},
      {400, Get("", "/\xc3\xa9"), "percent-encoded"},
      {400, Get("", "/a#b"), "percent-encoded"},
      {400, Get("", "models"), "neither a path"},
      {400, Get("", "ftp://a/b"), "neither a path"},
      {400, Get("", "http:///b"), "names no host"},
      {400, Get("", "http://user@host/b@"), "names no host"},
      {400, Get("", "*"), "for OPTIONS"},
      {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "malformed"},
      {400, "G@T / HTTP/1.1\r\nHost: a\r\n\r\n", "malformed"},
      {400, "\x16\x03\x01\x02", "0x16"},
      {400, "\r\n\r\n\r\n\r\n\r\n\r\n", "empty lines"},
      {400, "GET /\r\n\r\n", "malformed"},
      {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/1.1"},
      {505, "PRI * HTTP/2.0\r\n\r\n", "HTTP/1.1"},
      {501, "CONNECT host:443 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT"},
      {417, Get("Expect: miracles\r\nContent-Length: 3\r\n"), "100-continue"},
      {413, Get("Content-Length: 101\r\n"), "100 bytes"},
      {413, Chunked("65\r\n"), "100 bytes"},
      {413, Chunked("64\r\n" + std::string(100, 'a') + "\r\n1\r\n"), "100 bytes"},
      {413, Chunked("ffffffffffffffff\r\nabc"), "100 bytes"},
      {413, Chunked("ffffffffffffffffffffffff\r\nabc"), "100 bytes"},
      {414, "GET /" + long_word, "1024 bytes"},
      {431, Get("X: " + long_word + "\r\n"), "1024 bytes"},
      {431, Get(many), "10 headers"},
      {431, Chunked("3;" + long_word + long_word + long_word), "4096 bytes"},
      {431, Chunked("0\r\nX: " + long_word), "1024 bytes"},
  };
}

TEST(RequestReaderTest, RefusesWithTheRightStatusHoweverTheBytesCome) {
  std::vector<RefusedCase> cases = SmugglingCases();
  for (RefusedCase& one : OtherCases()) cases.push_back(std::move(one));
  for (const RefusedCase& one : cases) {
    for (const size_t piece : {size_t{1}, size_t{13}, one.text.size()}) {
      RequestReader reader(kLimits);
      Feed(one.text, piece, &reader);
      SCOPED_TRACE(::testing::PrintToString(one.text.substr(0, 200)) + " in pieces of " +
                   std::to_string(piece));
      ASSERT_EQ(reader.phase(), Phase::kRefused);
      EXPECT_EQ(reader.refusal_status(), one.status) << reader.refusal_message();
      EXPECT_THAT(reader.refusal_message(), HasSubstr(one.message));
    }
  }
}

TEST(RequestReaderTest, HoldsNoMoreThanTheLimits) {
  RequestReader reader({.max_header_bytes = 1024, .max_headers = 10, .max_body_bytes = 1 << 20});
  Feed(Chunked(""), 1000, &reader);
  for (int i = 0; i < 100'000 && reader.phase() == Phase::kBody; ++i) {
    Feed("1;x=yyyyyyyyyyyyyyyyyyyyyyyyyy\r\na\r\n", 3, &reader);
    ASSERT_LE(reader.n_buffered_bytes(), i + 1);
  }
  // Bytes beside the body are bounded as well.
  ASSERT_EQ(reader.phase(), Phase::kRefused);
  EXPECT_EQ(reader.refusal_status(), 431);
  EXPECT_LT(reader.request().body.size(), 200u);
}

}  // namespace
}  // namespace kvlathe::http
