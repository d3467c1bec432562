// The tests of the HTTP server share a server whose handler they can steer.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/test_client.h"

namespace kvlathe::http {

using std::chrono::milliseconds;

// Waits for what other threads bring about, five seconds at most.
template <typename Condition>
bool Soon(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// A server whose handler answers some paths itself and keeps the replies of all others.
class HttpServerTest : public ::testing::Test {
 protected:
  void Start() {
    auto server =
        HttpServer::Start(options_, [this](Request request, std::shared_ptr<Reply> reply) {
          Handle(std::move(request), std::move(reply));
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    kept_.clear();
    server_.reset();
  }

  void Handle(Request request, std::shared_ptr<Reply> reply) {
    ++n_handled_;
    if (request.path == "/echo") {
      return reply->Send({.content_type = "text/plain",
                          .body = request.method + " " + request.query + " " + request.body});
    }
    if (request.path == "/throw") throw std::runtime_error("a handler threw");
    if (request.path == "/drop") return;
    if (request.path == "/headers") {
      return reply->Send({.status = 429,
                          .headers = {{"Retry-After", "7"}, {"X-Evil", "a\r\nSet-Cookie: b"}},
                          .body = request.id + " " + request.peer});
    }
    const std::lock_guard lock(mutex_);
    reply->OnGone([this] { ++n_gone_; });
    kept_.push_back(std::move(reply));
    last_ = std::move(request);
  }

  std::shared_ptr<Reply> KeptReply(size_t idx) {
    const bool is_there = Soon([&] {
      const std::lock_guard lock(mutex_);
      return kept_.size() > idx;
    });
    const std::lock_guard lock(mutex_);
    return is_there ? kept_[idx] : nullptr;
  }

  static std::string Get(const std::string& path, const std::string& headers = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
  }
  static std::string Post(const std::string& path, const std::string& body) {
    return "POST " + path +
           " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
  static std::string ErrorCode(const TestResponse& response) {
    const auto json = nlohmann::json::parse(response.body);
    EXPECT_TRUE(json["error"]["param"].is_null());
    EXPECT_FALSE(json["error"]["message"].get<std::string>().empty());
    EXPECT_FALSE(json["error"]["type"].get<std::string>().empty());
    return json["error"]["code"].get<std::string>();
  }

  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> n_handled_ = 0;
  std::atomic<int> n_gone_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Reply>> kept_;
  Request last_;
};

}  // namespace kvlathe::http
