#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/api/api_fixture.h"

namespace kvlathe::api {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr char kResponsesPath[] = "/v1/responses";

class ResponsesTest : public ApiTest {};

TEST_F(ResponsesTest, AnswersATextWithTheShapeOfOpenAis) {
  const Json json = Answer(kResponsesPath, Greedy({{"model", "lathe-nano"},
                                                   {"input", "Hello there"},
                                                   {"instructions", "Be kind."},
                                                   {"max_output_tokens", 8},
                                                   {"metadata", {{"a", "b"}}},
                                                   {"store", true},
                                                   {"include", Json::array()},
                                                   {"something_new", 5}}));
  EXPECT_EQ(json["id"], "resp_r1");
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(json["store"], false);
  EXPECT_EQ(json["instructions"], "Be kind.");
  EXPECT_EQ(json["metadata"], (Json{{"a", "b"}}));
  EXPECT_EQ(json["max_output_tokens"], 8);
  EXPECT_EQ(json["error"], nullptr);
  ASSERT_EQ(json["output"].size(), 1u);
  const Json& item = json["output"][0];
  EXPECT_EQ(item["type"], "message");
  EXPECT_EQ(item["role"], "assistant");
  EXPECT_EQ(item["status"], "incomplete");
  EXPECT_EQ(item["content"].at(0)["type"], "output_text");
  EXPECT_FALSE(item["content"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(item["content"][0]["annotations"], Json::array());
  EXPECT_EQ(json["usage"]["output_tokens"], 8);
  EXPECT_EQ(json["usage"]["total_tokens"], json["usage"]["input_tokens"].get<int>() + 8);
  EXPECT_EQ(json["usage"]["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(json["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(ResponsesTest, IsTheAnswerOfAChat) {
  const Json chat = Answer("/v1/chat/completions",
                           Greedy({{"max_tokens", 10},
                                   {"messages",
                                    {{{"role", "system"}, {"content", "Be kind.\n\nAnd brief."}},
                                     {{"role", "user"}, {"content", "Hello"}},
                                     {{"role", "assistant"}, {"content", "Yes?"}},
                                     {{"role", "user"}, {"content", "Go on"}}}}}));
  const Json input = {
      {{"role", "developer"}, {"content", "And brief."}},
      {{"type", "message"},
       {"role", "user"},
       {"content", {{{"type", "input_text"}, {"text", "Hello"}}}}},
      {{"type", "reasoning"}, {"summary", Json::array()}},
      {{"type", "message"},
       {"role", "assistant"},
       {"content", {{{"type", "output_text"}, {"text", "Yes?"}, {"annotations", Json::array()}}}}},
      {{"role", "user"}, {"content", "Go on"}}};
  const Json json =
      Answer(kResponsesPath,
             Greedy({{"instructions", "Be kind."}, {"input", input}, {"max_output_tokens", 10}}));
  EXPECT_EQ(json["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(json["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

TEST_F(ResponsesTest, StreamsNamedEventsInOrder) {
  Json body = Greedy({{"input", "Hello there"}, {"max_output_tokens", 6}});
  const Json whole = Answer(kResponsesPath, body);
  body["stream"] = true;
  const auto reply = Post(kResponsesPath, body);
  Run({reply});
  ASSERT_TRUE(reply->has_ended);
  std::vector<std::string> types;
  std::string text;
  const std::vector<std::string> events = reply->Events();
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_EQ(event["sequence_number"], i);
    const std::string type = event["type"];
    EXPECT_THAT(reply->stream, HasSubstr("event: " + type + "\ndata: "));
    if (type == "response.output_text.delta") text += event["delta"].get<std::string>();
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_THAT(types, ElementsAreArray({"response.created", "response.in_progress",
                                       "response.output_item.added", "response.content_part.added",
                                       "response.output_text.delta", "response.output_text.done",
                                       "response.content_part.done", "response.output_item.done",
                                       "response.incomplete"}));
  EXPECT_EQ(text, whole["output"][0]["content"][0]["text"]);
  const Json first = Json::parse(events.front())["response"];
  EXPECT_EQ(first["status"], "in_progress");
  EXPECT_EQ(first["usage"], nullptr);
  Json last = Json::parse(events.back())["response"];
  EXPECT_EQ(last["output"][0]["content"], whole["output"][0]["content"]);
  EXPECT_EQ(last["usage"], whole["usage"]);
}

TEST_F(ResponsesTest, IsCompletedWhereTheModelEnds) {
  Json body = Greedy({{"input", "Hello"}, {"logit_bias", {{"2", 100}}}});
  const Json json = Answer(kResponsesPath, body);
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["incomplete_details"], nullptr);
  EXPECT_EQ(json["output"].at(0)["content"].at(0)["text"], "");
  body["stream"] = true;
  EXPECT_EQ(Stream(kResponsesPath, body, /*ends_with_done=*/false).back()["type"],
            "response.completed");
}

TEST_F(ResponsesTest, RefusesWhatWouldBeStored) {
  const std::pair<const char*, Json> refused[] = {{"previous_response_id", "resp_1"},
                                                  {"conversation", "conv_1"},
                                                  {"background", true},
                                                  {"prompt", {{"id", "pmpt_1"}}}};
  for (const auto& [field, value] : refused) {
    Json body = {{"input", "Hello"}};
    body[field] = value;
    const Json error = Answer(kResponsesPath, body, 400)["error"];
    EXPECT_EQ(error["param"], field);
    EXPECT_EQ(error["code"], "unsupported_parameter");
  }
  const auto reply = Begin("GET", "/v1/responses/resp_1");
  EXPECT_EQ(reply->sent.status, 501);
  EXPECT_THAT(reply->SentJson()["error"]["message"].get<std::string>(),
              HasSubstr("send the whole conversation as input"));
}

TEST_F(ResponsesTest, NamesTheFieldThatIsWrong) {
  const auto item = [](Json json) { return Json{{"input", Json::array({std::move(json)})}}; };
  const std::pair<Json, const char*> wrong[] = {
      {Json::object(), "input"},
      {{{"input", Json::array()}}, "input"},
      {{{"input", 5}}, "input"},
      {item("x"), "input[0]"},
      {item({{"type", "item_reference"}, {"id", "x"}}), "input[0].type"},
      {item({{"role", "user"}}), "input[0].content"},
      {item({{"role", "tool"}, {"content", "x"}}), "input[0].role"},
      {item({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}),
       "input[0].content[0].type"},
      {{{"input", "x"}, {"max_output_tokens", 0}}, "max_output_tokens"},
      {{{"input", "x"}, {"text", {{"format", {{"type", "x"}}}}}}, "text.format.type"},
      {{{"input", "x"}, {"text", {{"format", {{"type", "json_object"}}}}}}, "text.format"},
      {{{"input", "x"}, {"tools", {{{"type", "web_search"}}}}}, "tools[0].type"},
      {{{"input", "x"}, {"instructions", 5}}, "instructions"}};
  for (const auto& [body, param] : wrong) {
    EXPECT_EQ(Answer(kResponsesPath, body, 400)["error"]["param"], param) << body;
  }
}

}  // namespace
}  // namespace kvlathe::api
