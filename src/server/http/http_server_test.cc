// Requests and their answers.
#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace kvlathe::http
