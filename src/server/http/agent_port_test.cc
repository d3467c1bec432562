#include "server/http/agent_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

class AgentPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = *HttpServer::Start({}, [](Request, std::shared_ptr<Reply>) {});
    agent_ = *AgentPort::Start(*server_, {}, [this] {
      ++n_calls_;
      const std::lock_guard lock(mutex_);
      return line_;
    });
  }

  std::unique_ptr<HttpServer> server_;
  std::atomic<int> n_calls_ = 0;
  std::mutex mutex_;
  std::string line_ = "75%\n";
  std::unique_ptr<AgentPort> agent_;
};

TEST_F(AgentPortTest, SaysItsLineAndHangsUp) {
  EXPECT_EQ(TestClient(agent_->port()).ReadToEnd(), "75%\n");
  {
    const std::lock_guard lock(mutex_);
    line_ = "drain\n";
  }
  TestClient client(agent_->port());
  client.Send("what haproxy may say first\n");
  EXPECT_EQ(client.ReadToEnd(), "drain\n");
  EXPECT_EQ(n_calls_, 2);
}

TEST_F(AgentPortTest, ManyWhoStayAreClosedAndDoNotStopIt) {
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<TestClient>(agent_->port()));
  int n_lines = 0;
  for (const auto& client : clients) n_lines += client->ReadToEnd() == "75%\n";
  EXPECT_EQ(n_lines, 64);
  // None of them has hung up; all are closed a second later.
  EXPECT_TRUE(Soon([&] { return TestClient(agent_->port()).ReadToEnd() == "75%\n"; }));
}

TEST_F(AgentPortTest, EndsWithItsObjectAndWithTheServer) {
  const int port = agent_->port();
  EXPECT_EQ(AgentPort::Start(*server_, {.port = port}, [] { return ""; }).status().code(),
            StatusCode::kInternal);
  agent_.reset();
  EXPECT_TRUE(Soon([&] { return !TestClient(port).is_connected(); }));
  EXPECT_EQ(n_calls_, 0);
  const auto second = *AgentPort::Start(*server_, {.port = port}, [] { return "up\n"; });
  TestClient stays(port);
  EXPECT_EQ(stays.ReadUntil("\n"), "up\n");
  server_->Stop(milliseconds(0));
  EXPECT_FALSE(TestClient(port).is_connected());
}

}  // namespace
}  // namespace kvlathe::http
