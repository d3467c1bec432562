// The limits of the whole server, how it starts and how it ends.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

using ::testing::HasSubstr;

int CountOpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  int n_files = 0;
  while (readdir(directory) != nullptr) ++n_files;
  closedir(directory);
  return n_files;
}

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
