// Handlers see of the HTTP server one request and the way its answer takes back. No socket and no
// library of HTTP shows here, so that handlers are tested without either.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlathe::http {

struct Request {
  std::string id;      // the client's X-Request-Id, or made; also in the answer and in the log
  std::string method;  // "GET"
  std::string path;    // without the query, not decoded: "/v1/completions"
  std::string query;   // behind '?', or empty
  // Names in lower case; the values of a name that comes twice are joined by ", ".
  std::map<std::string, std::string, std::less<>> headers;
  std::string body;
  std::string tenant;  // whose key it carries, once somebody has looked: tenants share nothing
  std::string peer;    // where it came from, for the log: "127.0.0.1:40312", "[::1]:40312"

  // The value of a header, or empty. `name` is in lower case.
  std::string_view Header(std::string_view name) const {
    const auto header = headers.find(name);
    return header == headers.end() ? std::string_view() : std::string_view(header->second);
  }
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>>
      headers;  // beside those that the server writes itself
  std::string body;
};

enum class StreamKind {
  kEvents,     // server-sent events, text/event-stream
  kJsonLines,  // a JSON object a line, application/x-ndjson
  kBytes,      // application/octet-stream
};

// Where the answer to one request goes. Every member may be called by any thread and none blocks;
// what is written leaves in the order of the calls. A reply takes one whole response, or one
// stream: Send once, or BeginStream, Write as often as wanted and EndStream. What comes behind the
// end, or when the client is gone, is dropped.
//
// The client counts as gone when its connection ends or it closes its sending side before it has
// its answer, when it reads so slowly that more waits for it than the server allows, or when the
// server stops.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual void Send(Response response) = 0;
  // Status line and headers of a stream, chunked and without caching.
  virtual void BeginStream(StreamKind kind = StreamKind::kEvents) = 0;
  // Bytes as they are. False: the client is gone, and nothing more need be written.
  virtual bool Write(std::string bytes) = 0;
  virtual void EndStream() = 0;
  // Of a stream: what was written and the operating system has not taken yet.
  virtual int64_t n_waiting_bytes() = 0;

  // Runs `task` later on a thread of the HTTP server, one task of this reply at a time and in the
  // order of the calls. For work that the calling thread (the engine's) should not do. Tasks run
  // also when the client is gone.
  virtual void Post(std::function<void()> task) = 0;
  // `on_gone` is called once, on a thread of the HTTP server, if the client goes before the answer
  // has ended; at once if it is gone already.
  virtual void OnGone(std::function<void()> on_gone) = 0;
};

}  // namespace kvlathe::http
