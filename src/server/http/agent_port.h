// The agent check of HAProxy is a TCP port that says one line to whoever connects, and hangs up.
// With `agent-check` a server of HAProxy takes its weight from it ("75%"), or its state ("drain",
// "up", "down"; "up 75%" is both). HAProxy's configuration manual has the words (section 5.2).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http/http_server.h"

namespace kvlathe::http {

class AgentPort {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // as HttpServerOptions::host
    int port = 0;                    // 0: a free one
  };

  // Runs on the threads of `server` and ends with its Stop, or with this object. `line` is called
  // on one of them for each connection, must not block, and gives the line with its line end. At
  // most 64 connections are open at a time, each for at most a second; more are closed without a
  // line.
  static StatusOr<std::unique_ptr<AgentPort>> Start(const HttpServer& server,
                                                    const Options& options,
                                                    std::function<std::string()> line);
  // `line` is not called any more once this returns. Not on a thread of the server.
  ~AgentPort();
  AgentPort(const AgentPort&) = delete;
  AgentPort& operator=(const AgentPort&) = delete;

  int port() const;

 private:
  class Listener;

  explicit AgentPort(std::shared_ptr<Listener> listener);

  std::shared_ptr<Listener> listener_;
};

}  // namespace kvlathe::http
