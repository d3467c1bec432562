// Clients that do what they should not, many at once, beside others that are served: every request
// is answered or its client is gone, and nothing is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRequestsPerThread = 150;
#else
constexpr int kRequestsPerThread = 1000;
#endif
constexpr int kThreads = 4;

// Answers in its own time, as an engine does: a few bytes of every open stream in each step.
class Engine {
 public:
  Engine() : thread_([this] { Run(); }) {}
  ~Engine() {
    is_done_ = true;
    thread_.join();
  }

  void Submit(std::shared_ptr<Reply> reply, bool is_stream) {
    auto request = std::make_shared<Running>();
    request->reply = std::move(reply);
    request->is_stream = is_stream;
    request->reply->OnGone([this, request] {
      ++n_gone;
      request->is_gone = true;
    });
    if (is_stream) request->reply->BeginStream();
    const std::lock_guard lock(mutex_);
    running_.push_back(std::move(request));
  }

  std::atomic<int> n_gone = 0;
  std::atomic<int> n_answered = 0;
  std::atomic<int> n_tasks = 0;

 private:
  struct Running {
    std::shared_ptr<Reply> reply;
    bool is_stream = false;
    std::atomic<bool> is_gone = false;
    int n_tokens = 0;
  };

  // Whether the request goes on.
  bool Step(const std::shared_ptr<Running>& request) {
    if (request->is_gone) return false;
    request->reply->Post([this] { ++n_tasks; });
    if (request->is_stream) request->reply->Write("data: token\n\n");
    if (++request->n_tokens < 5) return true;
    if (request->is_stream) {
      request->reply->EndStream();
    } else {
      request->reply->Send({.body = "whole"});
    }
    ++n_answered;
    return false;
  }

  void Run() {
    while (!is_done_) {
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(running_, [this](const auto& request) { return !Step(request); });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Running>> running_;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

class Chaos {
 public:
  Chaos(int port, uint32_t seed) : port_(port), random_(seed) {}

  void Run() {
    for (int i = 0; i < kRequestsPerThread; ++i) DoOne(static_cast<int>(random_() % 10));
  }

  int n_good = 0;    // requests of clients that behave
  int n_served = 0;  // and got what they should

 private:
  static std::string Request(const std::string& path, const std::string& body) {
    return "POST " + path +
           " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }

  void DoOne(int kind) {
    TestClient client(port_);
    const std::string body(random_() % 2000, 'x');
    const std::string stream = Request("/stream", body);
    switch (kind) {
      case 0:
        client.Send(stream.substr(0, random_() % stream.size()));
        break;
      case 1:
        client.Send("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n");
        break;
      case 2:
        client.Send(stream);
        client.Reset();
        break;
      case 3:
        client.Send(stream);
        client.ReadUntil("token");
        client.Reset();
        break;
      case 4:
        client.Send(Request("/whole", body) + stream + "nonsense\n");
        client.ReadResponse();
        break;
      case 5:
        client.Send(stream);
        client.CloseSendingSide();
        client.ReadToEnd();
        break;
      default: {
        ++n_good;
        client.Send(Request(kind % 2 == 0 ? "/stream" : "/whole", body));
        const TestResponse response = client.ReadResponse().value_or(TestResponse());
        n_served += response.status == 200 && response.body.size() == (kind % 2 == 0 ? 65u : 5u);
      }
    }
  }

  const int port_;
  std::mt19937 random_;
};

TEST(HttpChaosTest, EveryRequestEndsOnceAndNothingIsLeft) {
  Engine engine;
  std::atomic<int> n_handled = 0;
  auto server = *HttpServer::Start({}, [&](Request request, std::shared_ptr<Reply> reply) {
    ++n_handled;
    engine.Submit(std::move(reply), request.path == "/stream");
  });
  std::vector<std::unique_ptr<Chaos>> chaos;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    chaos.push_back(std::make_unique<Chaos>(server->port(), static_cast<uint32_t>(i)));
    threads.emplace_back([one = chaos.back().get()] { one->Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : chaos) {
    EXPECT_GT(one->n_good, 0);
    EXPECT_EQ(one->n_served, one->n_good);
  }
  EXPECT_TRUE(Soon([&] { return server->n_connections() == 0; }));
  // The engine may still hold the reply of a client that has just gone.
  EXPECT_TRUE(Soon([&] { return server->n_open_replies() == 0; }));
  EXPECT_GT(engine.n_gone, 0);
  EXPECT_TRUE(Soon([&] { return engine.n_gone + engine.n_answered >= n_handled; }));
  server->Stop(milliseconds(0));
  EXPECT_GT(engine.n_tasks, 0);
  RecordProperty("handled", n_handled);
}

}  // namespace
}  // namespace kvlathe::http
