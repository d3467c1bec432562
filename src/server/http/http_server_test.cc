#include "server/http/http_server.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/test_client.h"

namespace kvlathe::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

int CountOpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  int n_files = 0;
  while (readdir(directory) != nullptr) ++n_files;
  closedir(directory);
  return n_files;
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

TEST_F(HttpServerTest, AnswersManyRequestsOfOneConnection) {
  Start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send(Post("/echo?a=b", "body " + std::to_string(i))));
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, "POST a=b body " + std::to_string(i));
    EXPECT_EQ(response->headers.at("content-type"), "text/plain");
    EXPECT_EQ(response->headers.count("connection"), 0u);
    EXPECT_THAT(response->headers.at("date"), HasSubstr("GMT"));
    EXPECT_THAT(response->headers.at("x-request-id"), HasSubstr("req-"));
  }
  EXPECT_EQ(server_->n_connections(), 1);
  EXPECT_EQ(server_->n_open_replies(), 0);
}

TEST_F(HttpServerTest, RequestIdIsTheClientsIfItIsSane) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/headers", "X-Request-Id: trace-1.a\r\n"));
  auto response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 429);
  EXPECT_EQ(response->headers.at("x-request-id"), "trace-1.a");
  EXPECT_EQ(response->headers.at("retry-after"), "7");
  EXPECT_THAT(response->body, HasSubstr("trace-1.a 127.0.0.1:"));
  // A handler's header stays one header.
  EXPECT_EQ(response->headers.count("set-cookie"), 0u);
  client.Send(Get("/headers", "X-Request-Id: a b\r\n"));
  response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_THAT(response->headers.at("x-request-id"), HasSubstr("req-"));
}

TEST_F(HttpServerTest, StreamsInChunks) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  EXPECT_EQ(server_->n_open_replies(), 1);
  reply->BeginStream();
  const auto head = client.ReadUntil("\r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_THAT(*head, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_THAT(*head, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(*head, HasSubstr("Cache-Control: no-cache\r\n"));
  EXPECT_TRUE(reply->Write("data: 1\n\n"));
  EXPECT_EQ(client.ReadUntil("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  EXPECT_TRUE(reply->Write("data: 2\n\n"));
  reply->EndStream();
  EXPECT_FALSE(reply->Write("late"));
  const auto rest = client.ReadUntil("0\r\n\r\n");
  ASSERT_TRUE(rest);
  EXPECT_THAT(*rest, HasSubstr("data: 2\n\n"));
  // The connection goes on.
  client.Send(Get("/echo"));
  EXPECT_TRUE(client.ReadResponse());
  EXPECT_EQ(n_gone_, 0);
}

TEST_F(HttpServerTest, OldClientsGetWhatTheyKnow) {
  Start();
  TestClient whole(server_->port());
  whole.Send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_THAT(whole.ReadToEnd().value_or(""), HasSubstr("Connection: close\r\n"));
  TestClient kept(server_->port());
  kept.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto response = kept.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers.at("connection"), "keep-alive");
  kept.Send("GET /keep HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  reply->BeginStream();
  reply->Write("data: 1\n\n");
  reply->EndStream();
  const std::string stream = kept.ReadToEnd().value_or("");
  EXPECT_THAT(stream, ::testing::EndsWith("\r\n\r\ndata: 1\n\n"));
  EXPECT_THAT(stream, ::testing::Not(HasSubstr("chunked")));
}

TEST_F(HttpServerTest, HeadHasNoBodyAndOptionsIsAnswered) {
  Start();
  TestClient client(server_->port());
  client.Send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto head = client.ReadResponse(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->headers.at("content-length"), "6");
  client.Send("HEAD /keep HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  reply->BeginStream();
  EXPECT_TRUE(reply->Write("data"));
  reply->EndStream();
  ASSERT_TRUE(client.ReadResponse(true));
  client.Send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto options = client.ReadResponse();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->status, 204);
  EXPECT_EQ(options->headers.count("content-length"), 0u);
  EXPECT_THAT(options->headers.at("allow"), HasSubstr("POST"));
  client.Send(Get("/echo"));
  EXPECT_EQ(client.ReadResponse().value_or(TestResponse()).body, "GET  ");
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/keep") + Post("/echo", "two") + "\r\n" + Get("/echo?three"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(n_handled_, 1);  // the second waits for the answer to the first
  reply->Send({.body = "one"});
  for (const char* expected : {"one", "POST  two", "GET three "}) {
    EXPECT_EQ(client.ReadResponse().value_or(TestResponse()).body, expected);
  }
}

TEST_F(HttpServerTest, TooMuchPipeliningEndsTheConnectionBehindTheAnswer) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  client.Send(Post("/echo", std::string(1 << 20, 'x')));
  std::this_thread::sleep_for(milliseconds(50));
  reply->Send({.body = "one"});
  EXPECT_EQ(client.ReadResponse().value_or(TestResponse()).body, "one");
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_EQ(n_handled_, 1);
}

TEST_F(HttpServerTest, ContinueIsSaidBeforeTheBody) {
  options_.max_body_bytes = 100;
  Start();
  TestClient client(server_->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hello");
  EXPECT_EQ(client.ReadResponse().value_or(TestResponse()).body, "POST  hello");
  // A body that is too long is refused before it is sent.
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 500\r\n\r\n");
  const auto refused = client.ReadResponse();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 413);
  EXPECT_EQ(ErrorCode(*refused), "body_too_large");
}

TEST_F(HttpServerTest, MalformedRequestsAreRefusedInOpenAisShape) {
  std::vector<Refusal> refusals;
  options_.on_refusal = [&](const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    refusals.push_back(refusal);
  };
  Start();
  TestClient client(server_->port());
  client.Send(
      "GET /echo HTTP/1.1\r\nX-Request-Id: mine\r\nContent-Length: 1\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  const auto response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(ErrorCode(*response), "malformed_request");
  EXPECT_EQ(response->headers.at("content-type"), "application/json");
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_EQ(response->headers.at("x-request-id"), "mine");
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_EQ(n_handled_, 0);
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].id, "mine");
  EXPECT_EQ(refusals[0].status, 400);
  EXPECT_THAT(refusals[0].peer, HasSubstr("127.0.0.1:"));
}

// The client sends the whole body before it reads, as most do, and still gets the answer.
TEST_F(HttpServerTest, BodyThatIsTooLongIsRefusedAndNotKept) {
  options_.max_body_bytes = 1 << 20;
  Start();
  TestClient client(server_->port());
  EXPECT_TRUE(client.Send(Post("/echo", std::string(8 << 20, 'x'))));
  const auto response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  EXPECT_EQ(n_handled_, 0);
}

TEST_F(HttpServerTest, ManyBodiesAtOnceAreBoundedTogether) {
  options_.max_received_bytes = 100'000;
  Start();
  TestClient first(server_->port());
  first.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n" +
             std::string(60'000, 'x'));
  std::this_thread::sleep_for(milliseconds(50));
  TestClient second(server_->port());
  second.Send(Post("/echo", std::string(70'000, 'x')));
  const auto refused = second.ReadResponse();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  first.Send(std::string(10'000, 'x'));
  EXPECT_EQ(first.ReadResponse().value_or(TestResponse()).status, 200);
  TestClient third(server_->port());
  third.Send(Post("/echo", std::string(70'000, 'x')));
  EXPECT_EQ(third.ReadResponse().value_or(TestResponse()).status, 200);
}

TEST_F(HttpServerTest, HandlersThatGiveNoAnswerAreAnsweredFor) {
  Start();
  TestClient client(server_->port());
  for (const char* path : {"/throw", "/drop"}) {
    client.Send(Get(path));
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << path;
    EXPECT_EQ(response->status, 500);
    EXPECT_EQ(ErrorCode(*response), "internal_error");
  }
  // A stream that is left breaks off, so that the client does not take it for whole.
  client.Send(Get("/keep"));
  auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  reply->BeginStream();
  reply->Write("data: 1\n\n");
  {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }
  reply.reset();
  const auto stream = client.ReadToEnd();
  ASSERT_TRUE(stream);
  EXPECT_THAT(*stream, HasSubstr("data: 1"));
  EXPECT_THAT(*stream, ::testing::Not(HasSubstr("0\r\n\r\n")));
  EXPECT_EQ(server_->n_open_replies(), 0);
}

TEST_F(HttpServerTest, TasksOfAReplyRunInOrderAndOneAtATime) {
  options_.n_threads = 4;
  Start();
  TestClient client(server_->port());
  client.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  std::vector<int> order;  // no lock: tasks do not overlap
  for (int i = 0; i < 100; ++i) {
    reply->Post([&order, i] { order.push_back(i); });
  }
  std::atomic<bool> is_done = false;
  reply->Post([&] {
    is_done = true;
    throw std::runtime_error("a task threw");
  });
  ASSERT_TRUE(Soon([&] { return is_done.load(); }));
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_EQ(client.ReadResponse().value_or(TestResponse()).status, 500);
}

// ---- Clients that go, or are slow

TEST_F(HttpServerTest, ClientThatGoesIsNoticedWhileItsAnswerIsComputed) {
  Start();
  for (int i = 0; i < 3; ++i) {
    TestClient client(server_->port());
    client.Send(Get("/keep"));
    const auto reply = KeptReply(static_cast<size_t>(i));
    ASSERT_TRUE(reply);
    if (i == 2) {
      reply->BeginStream();
      client.ReadUntil("\r\n\r\n");
    }
    const auto begin = std::chrono::steady_clock::now();
    i == 0 ? client.Close() : client.Reset();
    ASSERT_TRUE(Soon([&] { return n_gone_ == i + 1; }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(500));
    EXPECT_FALSE(reply->Write("data"));
    reply->Send({.body = "late"});
    // Who asks later is told at once; tasks still run.
    std::atomic<int> n_told = 0;
    reply->OnGone([&] { ++n_told; });
    reply->Post([&] { ++n_told; });
    EXPECT_TRUE(Soon([&] { return n_told == 2; }));
  }
  EXPECT_EQ(n_gone_, 3);
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 0; }));
  EXPECT_EQ(server_->n_open_replies(), 0);
}

TEST_F(HttpServerTest, AnswerThatIsThereReachesAClientThatHasClosedItsSendingSide) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/echo"));
  client.CloseSendingSide();
  EXPECT_THAT(client.ReadToEnd().value_or(""), HasSubstr("GET  "));
}

TEST_F(HttpServerTest, SlowReaderIsDropped) {
  options_.max_buffered_bytes = 100'000;
  Start();
  TestClient client(server_->port(), 4096);
  client.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  reply->BeginStream();
  int64_t n_bytes = 0;
  const std::string piece(10'000, 'x');
  while (n_bytes < (64 << 20) && reply->Write(piece)) {
    n_bytes += 10'000;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_LT(n_bytes, 64 << 20);
  EXPECT_TRUE(Soon([&] { return n_gone_ == 1; }));
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 0; }));
}

// One answer may be longer than what may wait; who does not read it is dropped by the clock.
TEST_F(HttpServerTest, ReaderThatStopsIsDroppedAfterTheWriteTimeout) {
  options_.max_buffered_bytes = 1000;
  options_.write_timeout = milliseconds(100);
  Start();
  TestClient reads(server_->port(), 4096);
  reads.Send(Get("/keep"));
  TestClient stops(server_->port(), 4096);
  ASSERT_TRUE(KeptReply(0));
  stops.Send(Get("/keep"));
  ASSERT_TRUE(KeptReply(1));
  KeptReply(1)->Send({.body = std::string(16 << 20, 'x')});
  KeptReply(0)->Send({.body = std::string(16 << 20, 'x')});
  EXPECT_EQ(reads.ReadResponse().value_or(TestResponse()).body.size(), size_t{16 << 20});
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 1; }));
}

TEST_F(HttpServerTest, LateRequestsAreAnswered408AndIdleConnectionsEnd) {
  options_.header_timeout = options_.body_timeout = options_.idle_timeout = milliseconds(150);
  Start();
  TestClient silent(server_->port());
  TestClient in_head(server_->port());
  in_head.Send("GET /echo HTTP/1.1\r\n");
  TestClient in_body(server_->port());
  in_body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
  TestClient idle(server_->port());
  idle.Send(Get("/echo"));
  EXPECT_TRUE(idle.ReadResponse());
  TestClient computed(server_->port());
  computed.Send(Get("/keep"));
  ASSERT_TRUE(KeptReply(0));
  for (TestClient* late : {&in_head, &in_body}) {
    const auto response = late->ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 408);
    EXPECT_EQ(ErrorCode(*response), "request_timeout");
  }
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_EQ(idle.ReadToEnd(), "");
  // A request that is being computed has no deadline here.
  KeptReply(0)->Send({.body = "done"});
  EXPECT_EQ(computed.ReadResponse().value_or(TestResponse()).body, "done");
}

// ---- Limits of the whole server, and its end

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitGet503) {
  options_.max_connections = 2;
  Start();
  TestClient first(server_->port());
  TestClient second(server_->port());
  ASSERT_TRUE(Soon([&] { return server_->n_connections() == 2; }));
  TestClient third(server_->port());
  third.Send(Get("/echo"));
  const auto refused = third.ReadResponse();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  EXPECT_EQ(ErrorCode(*refused), "overloaded");
  EXPECT_EQ(third.ReadToEnd(), "");
  second.Close();
  third.Close();
  ASSERT_TRUE(Soon([&] { return server_->n_connections() == 1; }));
  TestClient fourth(server_->port());
  fourth.Send(Get("/echo"));
  EXPECT_EQ(fourth.ReadResponse().value_or(TestResponse()).status, 200);
}

TEST_F(HttpServerTest, ServesOnWhenFileDescriptorsWereUsedUp) {
  Start();
  const int n_before = CountOpenFiles();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(n_before + 20);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<std::unique_ptr<TestClient>> clients;
  do {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
  } while (clients.back()->is_connected() && clients.size() < 100);
  EXPECT_LT(clients.size(), 100u);
  // The client that got the last descriptor: the server cannot take its connection yet.
  clients.pop_back();
  TestClient& waiting = *clients.back();
  waiting.Send(Get("/echo"));
  clients.erase(clients.begin(), clients.end() - 1);
  EXPECT_EQ(waiting.ReadResponse().value_or(TestResponse()).status, 200);
  clients.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 0; }));
  EXPECT_EQ(CountOpenFiles(), n_before);
}

TEST_F(HttpServerTest, LeavesNoFileOpen) {
  const int n_before = CountOpenFiles();
  for (int round = 0; round < 3; ++round) {
    Start();
    for (int i = 0; i < 20; ++i) {
      TestClient client(server_->port());
      client.Send(i % 2 == 0 ? Get("/echo") : "nonsense\n");
      if (i % 3 == 0) client.ReadResponse();
      if (i % 3 == 1) client.Reset();
    }
    server_.reset();
  }
  EXPECT_EQ(CountOpenFiles(), n_before);
}

TEST_F(HttpServerTest, StopLetsAnswersLeave) {
  Start();
  TestClient idle(server_->port());
  idle.Send(Get("/echo"));
  ASSERT_TRUE(idle.ReadResponse());
  TestClient busy(server_->port());
  busy.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  server_->StopAccepting();
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_TRUE(Soon([&] { return !TestClient(server_->port()).is_connected(); }));
  std::thread answers([&] {
    std::this_thread::sleep_for(milliseconds(50));
    reply->Send({.body = "done"});
  });
  const auto begin = std::chrono::steady_clock::now();
  server_->Stop(milliseconds(5000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(4000));
  answers.join();
  const auto response = busy.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "done");
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_EQ(n_gone_, 0);
}

TEST_F(HttpServerTest, StopCutsOffWhoeverIsThereAtTheDeadline) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/keep"));
  const auto reply = KeptReply(0);
  ASSERT_TRUE(reply);
  reply->BeginStream();
  std::atomic<bool> has_run = false;
  reply->Post([&] { has_run = true; });
  server_->Stop(milliseconds(20));
  EXPECT_TRUE(has_run);
  EXPECT_EQ(n_gone_, 1);
  EXPECT_EQ(server_->n_connections(), 0);
  EXPECT_FALSE(reply->Write("data"));
  // What comes behind the end does nothing.
  reply->Post([] { FAIL(); });
  reply->EndStream();
  server_->Stop(milliseconds(20));
  // A reply may outlive the server.
  const auto kept = std::exchange(kept_, {});
  server_.reset();
  EXPECT_FALSE(reply->Write("data"));
}

TEST_F(HttpServerTest, ListensOnNamesAndBothKindsOfAddresses) {
  for (const char* host : {"localhost", "::1", "127.0.0.1", "0.0.0.0"}) {
    HttpServerOptions options;
    options.host = host;
    const auto server = HttpServer::Start(options, [](Request, std::shared_ptr<Reply>) {});
    if (std::string(host) == "::1" && !server.ok()) continue;  // a machine without IPv6
    ASSERT_TRUE(server.ok()) << host << server.status();
    EXPECT_GT((*server)->port(), 0);
  }
}

TEST_F(HttpServerTest, StartSaysWhatIsWrong) {
  Start();
  const auto start = [](const HttpServerOptions& options) {
    return HttpServer::Start(options, [](Request, std::shared_ptr<Reply>) {}).status();
  };
  HttpServerOptions options;
  options.port = server_->port();
  EXPECT_EQ(start(options).code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("in use"));
  options = {};
  options.host = "no.such.host.invalid";
  EXPECT_EQ(start(options).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("no.such.host.invalid"));
  options = {};
  options.max_connections = 0;
  EXPECT_EQ(start(options).code(), StatusCode::kInvalidArgument);
  options = {};
  options.port = 65536;
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("65536"));
}

}  // namespace
}  // namespace kvlathe::http
