// Clients that go, that are slow, and that are late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

using ::testing::HasSubstr;

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
  options_.write_timeout = milliseconds(300);
  Start();
  TestClient reads(server_->port());
  reads.Send(Get("/keep"));
  ASSERT_TRUE(KeptReply(0));
  TestClient stops(server_->port(), 4096);
  stops.Send(Get("/keep"));
  ASSERT_TRUE(KeptReply(1));
  KeptReply(1)->Send({.body = std::string(16 << 20, 'x')});
  KeptReply(0)->Send({.body = std::string(16 << 20, 'x')});
  EXPECT_EQ(reads.ReadResponse().value_or(TestResponse()).body.size(), size_t{16 << 20});
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 1; }));
}

// The system has megabytes for a client, and asks us for more only when many of them have gone.
TEST_F(HttpServerTest, ReaderThatIsSlowButReadsIsKept) {
  options_.write_timeout = milliseconds(300);
  Start();
  TestClient client(server_->port(), 4096);
  client.Send(Get("/keep"));
  ASSERT_TRUE(KeptReply(0));
  KeptReply(0)->Send({.body = std::string(16 << 20, 'x')});
  char bytes[4096];
  for (int i = 0; i < 75; ++i) {
    ASSERT_GT(recv(client.fd(), bytes, sizeof(bytes), 0), 0);
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(server_->n_connections(), 1);
  EXPECT_TRUE(Soon([&] { return server_->n_connections() == 0; }));
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

}  // namespace
}  // namespace kvlathe::http
