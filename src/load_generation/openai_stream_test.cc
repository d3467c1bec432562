#include "load_generation/openai_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load_generation/http_client.h"
#include "load_generation/server_counters.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;

std::vector<std::string> EventsOf(const std::string& bytes, size_t piece) {
  EventReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Feed(std::string_view(bytes).substr(at, piece));
    while (auto event = reader.Next()) events.push_back(*event);
  }
  return events;
}

TEST(EventReaderTest, ReadsEventsFromPiecesOfAnySize) {
  const std::string bytes =
      ": ping\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 4\n\ndata: "
      "[DONE]\n\ndata: cut";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_THAT(EventsOf(bytes, piece), ElementsAre("{\"a\": 1}", "two\nlines", "[DONE]"));
  }
}

TEST(StreamEventTest, ReadsTextUsageAndErrors) {
  StreamEvent event = ReadStreamEvent(R"({"choices": [{"text": "ab", "index": 0}]})");
  EXPECT_TRUE(event.has_choice);
  EXPECT_EQ(event.text, "ab");
  event = ReadStreamEvent(R"({"choices": [{"delta": {"role": "assistant", "content": "cd"}}]})");
  EXPECT_EQ(event.text, "cd");
  event =
      ReadStreamEvent(R"({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})");
  EXPECT_FALSE(event.has_choice);
  EXPECT_EQ(event.n_input, 5);
  EXPECT_EQ(event.n_output, 7);
  EXPECT_TRUE(ReadStreamEvent("[DONE]").is_done);
  EXPECT_EQ(ReadStreamEvent(R"({"error": {"message": "no\nroom", "code": 503}})").error, "no room");
  for (const char* broken : {"{", "[1]", "", "3"})
    EXPECT_TRUE(ReadStreamEvent(broken).is_broken) << broken;
  event = ReadStreamEvent(R"({"choices": [{"delta": 3}], "usage": null, "error": null})");
  EXPECT_TRUE(event.has_choice);
  EXPECT_EQ(event.text + event.error, "");
}

TEST(RequestBodyTest, AsksForExactlyTheTokens) {
  LoadRequest request{"", {5, 6}, 2, 9};
  RequestStyle style{.model = "m", .kv = "lathe(ratio=4)"};
  const nlohmann::json stream_options = {{"include_usage", true}};
  nlohmann::json expected = {{"model", "m"},
                             {"prompt", {5, 6}},
                             {"max_tokens", 9},
                             {"stream", true},
                             {"ignore_eos", true},
                             {"kv", "lathe(ratio=4)"},
                             {"stream_options", stream_options}};
  EXPECT_EQ(nlohmann::json::parse(RequestBody(request, style)), expected);
  request = {"Hello", {}, 1, 4};
  style = {.is_chat = true,
           .model = "m",
           .ignore_eos = false,
           .temperature = 0.5,
           .extra_body = {{"seed", 1}}};
  expected = {{"model", "m"}, {"max_completion_tokens", 4}, {"stream", true},
              {"seed", 1},    {"temperature", 0.5},         {"stream_options", stream_options}};
  expected["messages"][0] = {{"role", "user"}, {"content", "Hello"}};
  EXPECT_EQ(nlohmann::json::parse(RequestBody(request, style)), expected);
}

TEST(ErrorTextTest, IsTheMessageOrTheBody) {
  EXPECT_EQ(ErrorTextOf(R"({"error": {"message": "queue is full"}})"), "queue is full");
  EXPECT_EQ(ErrorTextOf("<html>\n502</html>"), "<html> 502</html>");
}

TEST(ServerAddressTest, ReadsHostPortAndPath) {
  const auto address = [](std::string_view url) {
    const auto parsed = ServerAddress::Parse(url);
    return parsed.ok() ? parsed->HostHeader() + " " + parsed->path : "refused";
  };
  EXPECT_EQ(address("http://localhost:8080"), "localhost:8080 ");
  EXPECT_EQ(address("http://h/proxy/"), "h:80 /proxy");
  EXPECT_EQ(address("http://[::1]:90/a"), "[::1]:90 /a");
  for (const char* url : {"https://h:1", "h:80", "http://", "http://:80", "http://h:", "http://h:0",
                          "http://h:65536", "http://h:8x", "http://[::1:90"}) {
    EXPECT_EQ(address(url), "refused") << url;
  }
}

TEST(ServerCountersTest, AddsUpTheSeriesOfAName) {
  const ServerCounters counters = ServerCounters::Parse(
      "# HELP vllm:num_preemptions_total x\nvllm:num_preemptions_total{model_name=\"a b\"} 2\n"
      "vllm:num_preemptions_total{model_name=\"c\"} 3\nvllm:num_preemptions_total_created 9\n"
      "vllm:request_queue_time_seconds_sum 1.5\nvllm:request_queue_time_seconds_count 4 "
      "1700000000\n");
  EXPECT_EQ(counters.preemptions, 5);
  EXPECT_EQ(counters.queue_seconds, 1.5);
  EXPECT_EQ(counters.queue_count, 4);
  EXPECT_FALSE(counters.prefix_hits.has_value());
}

}  // namespace
}  // namespace kvlathe
