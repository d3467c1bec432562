#include "load_generation/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "load_generation/canned_server.h"
#include "load_generation/server_questions.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Token(const std::string& text) {
  return "data: {\"choices\": [{\"text\": \"" + text + "\"}]}\n\n";
}
const char* const kUsage =
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 2}}\n\n";
const char* const kDone = "data: [DONE]\n\n";

// A whole answer, cut into pieces of `piece` bytes.
CannedAnswer Stream(size_t piece = 1000) {
  std::string bytes = ChunkedHeader();
  // Chunks are cut elsewhere than events.
  const std::string events = Token("ab") + Token("cd") + kUsage + kDone;
  bytes += Chunk(events.substr(0, 20)) + Chunk(events.substr(20, 50)) + Chunk(events.substr(70)) +
           kLastChunk;
  CannedAnswer answer;
  for (size_t at = 0; at < bytes.size(); at += piece)
    answer.pieces.push_back(bytes.substr(at, piece));
  return answer;
}

class LoadRunTest : public testing::Test {
 protected:
  LoadRecords Run(const CannedServer& server, int64_t n_requests, int n_clients,
                  double rate = INFINITY) {
    LoadTarget target;
    target.server = {"127.0.0.1", std::to_string(server.port()), ""};
    target.style.model = "m";
    target.timeout_s = timeout_s_;
    const auto workload = MakeDrawnWorkload(RandomIds{100}, {3, 3, 3}, {2, 2, 2}, 1);
    LoadOptions options;
    options.arrivals = {rate, 1, 1};
    options.n_requests = n_requests;
    options.max_concurrency = n_clients;
    auto records = RunLoad(target, **workload, options);
    EXPECT_TRUE(records.ok()) << records.status();
    return *std::move(records);
  }

  RequestRecord RunOne(const CannedAnswer& answer) {
    CannedServer server([&answer](int, const std::string&) { return answer; });
    const LoadRecords records = Run(server, 1, 1);
    EXPECT_EQ(records.requests.size(), 1u);
    return records.requests.front();
  }

  double timeout_s_ = 60;
};

TEST_F(LoadRunTest, ClientsKeepTheirConnections) {
  CannedServer server([](int, const std::string& request) {
    EXPECT_THAT(request, HasSubstr("POST /v1/completions HTTP/1.1\r\n"));
    EXPECT_THAT(request, HasSubstr("\"max_tokens\":2"));
    return Stream();
  });
  const LoadRecords records = Run(server, 9, 3);
  EXPECT_EQ(server.n_connections(), 3);
  EXPECT_EQ(records.n_reconnected, 0);
  ASSERT_EQ(records.requests.size(), 9u);
  for (const RequestRecord& request : records.requests) {
    EXPECT_EQ(request.error_kind + request.error, "");
    EXPECT_EQ(request.text, "abcd");
    EXPECT_EQ(request.n_input, 7);
    EXPECT_EQ(request.n_output, 2);
    EXPECT_EQ(request.itl_s.size(), 1u);
    EXPECT_GT(request.ttft_s, 0);
    EXPECT_GE(request.latency_s, request.ttft_s);
    EXPECT_GE(records.duration_s, request.start_s + request.latency_s);
  }
}

TEST_F(LoadRunTest, AnswersMayComeByteByByte) {
  const RequestRecord record = RunOne(Stream(1));
  EXPECT_EQ(record.text, "abcd");
  EXPECT_EQ(record.error_kind, "");
}

TEST_F(LoadRunTest, AnOpenLoopWaitsForArrivalsAndForClients) {
  CannedServer server([](int, const std::string&) {
    CannedAnswer answer = Stream();
    answer.wait_ms = 30;
    return answer;
  });
  const LoadRecords records = Run(server, 6, 1, 100);
  EXPECT_EQ(server.n_connections(), 1);
  EXPECT_NEAR(records.requests.back().arrival_s, 0.06, 1e-9);
  EXPECT_GE(records.duration_s, 0.18);
  for (size_t i = 1; i < records.requests.size(); ++i) {
    const RequestRecord &last = records.requests[i - 1], &next = records.requests[i];
    EXPECT_GE(next.start_s, next.arrival_s);
    EXPECT_GE(next.start_s, last.start_s + last.latency_s);
  }
  EXPECT_GT(records.requests.back().client_queue_s(), 0.08);
}

TEST_F(LoadRunTest, FailuresHaveKinds) {
  EXPECT_EQ(RunOne({{WithLength(429, R"({"error": {"message": "full"}})")}}).error_kind,
            "http 429");
  EXPECT_EQ(RunOne({{WithLength(429, R"({"error": {"message": "full"}})")}}).error, "full");
  EXPECT_EQ(RunOne({{"no HTTP at all\r\n\r\n"}, true}).error_kind, "bad response");
  EXPECT_EQ(RunOne({{}, true}).error_kind, "disconnected");
  EXPECT_EQ(RunOne({{ChunkedHeader(), Chunk(Token("ab"))}, true}).error_kind, "disconnected");
  EXPECT_EQ(RunOne({{ChunkedHeader(), Chunk(Token("ab")), kLastChunk}}).error_kind, "cut short");
  EXPECT_EQ(RunOne({{ChunkedHeader(), Chunk("data: {]\n\n"), Chunk(kDone), kLastChunk}}).error_kind,
            "bad response");
  EXPECT_EQ(RunOne({{WithLength(200, "{}")}}).error_kind, "bad response");
  const RequestRecord broken =
      RunOne({{ChunkedHeader(), Chunk(Token("ab")),
               Chunk("data: {\"error\": {\"message\": \"out\"}}\n\n"), Chunk(kDone), kLastChunk}});
  EXPECT_EQ(broken.error_kind + ": " + broken.error, "stream error: out");
}

TEST_F(LoadRunTest, SilenceEndsWithTheTimeout) {
  timeout_s_ = 0.05;
  CannedServer server([](int, const std::string&) {
    return CannedAnswer{{ChunkedHeader(), Chunk(Token("ab"))}};
  });
  EXPECT_EQ(Run(server, 1, 1).requests.front().error_kind, "timeout");
}

TEST_F(LoadRunTest, AnIdleConnectionThatWasClosedIsMadeAgain) {
  CannedServer server([](int, const std::string&) {
    CannedAnswer answer = Stream();
    answer.closes = true;
    return answer;
  });
  const LoadRecords records = Run(server, 4, 1);
  EXPECT_EQ(server.n_connections(), 4);
  EXPECT_EQ(server.n_requests(), 4);
  EXPECT_EQ(records.n_reconnected, 3);
  for (const RequestRecord& request : records.requests) EXPECT_EQ(request.error_kind, "");
}

TEST_F(LoadRunTest, NobodyListens) {
  auto server = std::make_unique<CannedServer>([](int, const std::string&) { return Stream(); });
  LoadTarget target;
  target.server = {"127.0.0.1", std::to_string(server->port()), ""};
  server.reset();
  const auto workload = MakeDrawnWorkload(RandomIds{100}, {3, 3, 3}, {2, 2, 2}, 1);
  LoadOptions options;
  options.n_requests = 2;
  options.max_concurrency = 1;
  const auto records = RunLoad(target, **workload, options);
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->requests.size(), 2u);
  EXPECT_EQ(records->requests[1].error_kind, "connect");
  EXPECT_EQ(FirstModel({target.server, ""}, 0).status().code(), StatusCode::kInternal);
}

TEST_F(LoadRunTest, AsksTheServerWhatItIs) {
  CannedServer server([](int, const std::string& request) {
    if (request.starts_with("GET /v1/models")) {
      return CannedAnswer{
          {WithLength(200, R"({"data": [{"id": "a", "meta": {"n_vocab": 300}}]})")}};
    }
    if (request.starts_with("POST /tokenize"))
      return CannedAnswer{{WithLength(200, R"({"tokens": [4, 5]})")}};
    return CannedAnswer{{WithLength(404, R"({"error": {"message": "none"}})")}};
  });
  const AskedServer asked{{"127.0.0.1", std::to_string(server.port()), ""}, "key"};
  EXPECT_EQ(*FirstModel(asked, 0), "a");
  EXPECT_EQ(*VocabSizeOfServer(asked), 300);
  EXPECT_THAT(*TokenizeOnServer(asked, "a", "text"), ElementsAre(4, 5));
}

}  // namespace
}  // namespace kvlathe
