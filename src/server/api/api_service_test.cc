#include "server/api/api_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <utility>

#include "server/api/api_fixture.h"
#include "server/api/long_requests.h"

namespace kvlathe::api {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

class ApiServiceTest : public ApiTest {
 protected:
  Json Get(const std::string& path, int status = 200) {
    const auto reply = Begin("GET", path);
    EXPECT_EQ(reply->sent.status, status) << reply->sent.body;
    return reply->SentJson();
  }
};

TEST_F(ApiServiceTest, ListsModels) {
  const Json list = Get("/v1/models");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  const Json& model = list["data"][0];
  EXPECT_EQ(model["id"], "lathe-nano");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["created"], 1700000000);
  EXPECT_EQ(model["owned_by"], "kvlathe");
  EXPECT_EQ(model["max_model_len"], 256);
  EXPECT_EQ(model["kv_levels"], (Json{"none", "int8"}));
  EXPECT_EQ(list["data"][1]["id"], "nano");
  EXPECT_EQ(Get("/v1/models/lathe-nano"), model);
  EXPECT_EQ(Get("/v1/models/lathe%2Dnano"), model);
  const Json error = Get("/v1/models/gpt-5", 404)["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(Answer("/v1/completions", {{"model", "gpt-5"}, {"prompt", "x"}}, 404)["error"], error);
}

TEST_F(ApiServiceTest, ModelsMayHaveSlashesInTheirNames) {
  ApiContext context = Context();
  context.model_names = {"org/model"};
  service_ = std::make_unique<ApiService>(context);
  EXPECT_EQ(Get("/v1/models/org/model")["id"], "org/model");
  EXPECT_EQ(Get("/v1/models/org%2Fmodel")["id"], "org/model");
}

TEST_F(ApiServiceTest, TokenizesAsVllm) {
  const Tokenizer& tokenizer = NanoModel::Get().tokenizer();
  const Json json = Answer("/tokenize", {{"model", "nano"}, {"prompt", "A test"}});
  const std::vector<int32_t> ids = tokenizer.Tokenize("A test", true);
  EXPECT_EQ(json, (Json{{"count", ids.size()},
                        {"max_model_len", 256},
                        {"tokens", ids},
                        {"token_strs", nullptr}}));
  const Json plain =
      Answer("/tokenize",
             {{"prompt", "A test"}, {"add_special_tokens", false}, {"return_token_strs", true}});
  EXPECT_EQ(plain["tokens"], tokenizer.Tokenize("A test", false));
  ASSERT_EQ(plain["token_strs"].size(), plain["tokens"].size());
  std::string text;
  for (const Json& piece : plain["token_strs"]) text += piece.get<std::string>();
  EXPECT_THAT(text, HasSubstr("A test"));
  const Json chat = Answer("/tokenize", {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}});
  EXPECT_EQ(chat["tokens"],
            tokenizer.Tokenize("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", true));
}

TEST_F(ApiServiceTest, TokenizesAsLlamaCpp) {
  const Tokenizer& tokenizer = NanoModel::Get().tokenizer();
  EXPECT_EQ(Answer("/tokenize", {{"content", "A test"}}),
            (Json{{"tokens", tokenizer.Tokenize("A test", false)}}));
  const Json pieces =
      Answer("/tokenize", {{"content", "A test"}, {"add_special", true}, {"with_pieces", true}});
  EXPECT_EQ(pieces["tokens"][0], (Json{{"id", 1}, {"piece", "<s>"}}));
  EXPECT_EQ(Answer("/tokenize", {{"content", "</s>"}})["tokens"], Json::array({2}));
  EXPECT_GT(Answer("/tokenize", {{"content", "</s>"}, {"parse_special", false}})["tokens"].size(),
            1u);
}

TEST_F(ApiServiceTest, Detokenizes) {
  const std::string text = "Caf\xC3\xA9, \xF0\x9F\x98\x80!";
  const Json ids = NanoModel::Get().tokenizer().Tokenize(text, false);
  const Json json = Answer("/detokenize", {{"tokens", ids}});
  EXPECT_EQ(json["prompt"], text);
  EXPECT_EQ(json["content"], text);
  EXPECT_EQ(Answer("/detokenize", {{"tokens", {2}}})["prompt"], "</s>");
  for (const Json& wrong :
       {Json("x"), Json::array({-1}), Json::array({4096}), Json::array({"1"}), Json(nullptr)}) {
    EXPECT_EQ(Answer("/detokenize", {{"tokens", wrong}}, 400)["error"]["param"], "tokens");
  }
  // Half of a character is replaced: JSON has whole ones.
  ASSERT_GT(ids.size(), 3u);
  const Json half = Json::array({ids[ids.size() - 3]});
  EXPECT_FALSE(Answer("/detokenize", {{"tokens", half}})["prompt"].get<std::string>().empty());
}

// What lm-evaluation-harness 0.4.13 asks before it takes the server's tokenizer.
TEST_F(ApiServiceTest, TellsOfTheTokenizer) {
  const Json json = Get("/tokenizer_info");
  EXPECT_EQ(json["bos_token"], "<s>");
  EXPECT_EQ(json["eos_token"], "</s>");
  EXPECT_EQ(json["model_max_length"], 256);
  EXPECT_NE(json["chat_template"].get<std::string>().find("<|im_start|>"), std::string::npos);
  const Json eos =
      Answer("/tokenize", {{"prompt", json["eos_token"]}, {"add_special_tokens", false}});
  EXPECT_EQ(eos["tokens"], Json::array({2}));
}

TEST_F(ApiServiceTest, KnowsItsRoutes) {
  for (const std::string path : {"/", "/v1", "/v1/model", "/v1/chat", "/v1/models/", "/v1/embed",
                                 "//v1/models", "/v1/completions/", "/metrics", "*"}) {
    EXPECT_EQ(Get(path, 404)["error"]["code"], "not_found") << path;
    EXPECT_EQ(ApiService::RouteOf(path), "other");
  }
  for (const std::string path :
       {"/v1/evals", "/v1/images/generations", "/v1/audio/speech", "/v1/files", "/v1/files/file-1",
        "/v1/batches", "/v1/moderations", "/v1/responses/resp_1/input_items"}) {
    const Json error = Get(path, 501)["error"];
    EXPECT_EQ(error["type"], "not_supported_error") << path;
    EXPECT_EQ(error["code"], "not_supported");
  }
  for (const ApiRoute& route : ApiService::Routes()) {
    const std::string wrong = route.method == "GET" ? "POST" : "GET";
    const std::string path = route.path == "/v1/models/{id}" ? "/v1/models/x" : route.path;
    EXPECT_EQ(ApiService::RouteOf(path), route.path);
    const auto reply = Begin(wrong, path, "{}");
    EXPECT_EQ(reply->sent.status, 405) << route.path;
    EXPECT_EQ(reply->SentJson()["error"]["code"], "method_not_allowed");
    const std::string allowed = route.method == "GET" ? "GET, HEAD" : "POST";
    EXPECT_THAT(reply->sent.headers, Contains(Pair("Allow", allowed)));
    EXPECT_EQ(observer_.ended.back().route, route.path);
    EXPECT_EQ(observer_.ended.back().http_status, 405);
  }
  EXPECT_EQ(Begin("HEAD", "/v1/models")->sent.status, 200);
}

TEST_F(ApiServiceTest, AnswersBadBodiesOnEveryRoute) {
  for (const ApiRoute& route : ApiService::Routes()) {
    if (route.method != "POST" || route.path == "/slots/{id}") continue;
    for (const std::string body :
         {"", "{", "[]", "{\"a\": 1, \"a\": 2}", "{\"prompt\": \"\\ud800\"}"}) {
      const auto reply = Begin("POST", route.path, body);
      EXPECT_EQ(reply->sent.status, 400) << route.path << " " << body;
      const Json error = reply->SentJson()["error"];
      // Ollama's clients are told a text.
      if (route.path.starts_with("/api/")) {
        EXPECT_TRUE(error.is_string()) << error;
      } else {
        EXPECT_EQ(error["type"], "invalid_request_error");
      }
    }
  }
}

TEST_F(ApiServiceTest, TellsTheObserver) {
  Answer("/v1/completions", {{"prompt", {5, 6, 7}}, {"max_tokens", 4}, {"ignore_eos", true}});
  ASSERT_EQ(observer_.began.size(), 1u);
  EXPECT_EQ(observer_.began[0].request_id, "r1");
  EXPECT_EQ(observer_.began[0].route, "/v1/completions");
  EXPECT_EQ(observer_.began[0].level, "none");
  EXPECT_EQ(observer_.began[0].prompt_tokens, 3);
  EXPECT_EQ(observer_.began[0].max_tokens, 4);
  ASSERT_EQ(observer_.ended.size(), 1u);
  const RequestEnded& ended = observer_.ended[0];
  EXPECT_EQ(ended.http_status, 200);
  EXPECT_EQ(ended.n_choices, 1);
  EXPECT_EQ(ended.output_tokens, 4);
  EXPECT_EQ(ended.finish_reason, "length");
  EXPECT_EQ(ended.error_code, "");
  EXPECT_GT(ended.first_token_seconds, 0);
  EXPECT_GE(ended.seconds, ended.first_token_seconds);
  Answer("/v1/completions", {{"prompt", 5}}, 400);
  EXPECT_EQ(observer_.began.size(), 1u);
  EXPECT_EQ(observer_.ended.back().http_status, 400);
  EXPECT_THAT(observer_.ended.back().error_message, HasSubstr("prompt"));
}

TEST_F(ApiServiceTest, ErrorsOfOthersHaveTheSameShape) {
  const http::Response response =
      ErrorResponse(401, "authentication_error", "invalid_api_key", "no key");
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(Json::parse(response.body), (Json{{"error",
                                               {{"message", "no key"},
                                                {"type", "authentication_error"},
                                                {"param", nullptr},
                                                {"code", "invalid_api_key"}}}}));
}

TEST_F(ApiServiceTest, RefusesTextsThatCannotFitBeforeTheyAreTokenised) {
  const std::string giant(1 << 20, 'a');
  const std::vector<std::pair<std::string, Json>> requests = {
      {"/v1/completions", {{"prompt", giant}}},
      {"/v1/completions", {{"prompt", {"short", giant}}}},
      {"/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", giant}}}}}},
      {"/v1/responses", {{"input", giant}}}};
  for (const auto& [path, body] : requests) {
    const Json error = LongAnswer(path, body, 400)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("at least")) << path;
  }
  // Who only asks how many tokens it has is told.
  const Json counted = LongAnswer("/tokenize", {{"prompt", giant}});
  EXPECT_GT(counted["count"].get<int>(), 256);
}

TEST(LongRequests, WhatWaitsIsBoundedWhileOneIsHandled) {
  std::promise<void> begins, may_end;
  LongRequests requests;
  ASSERT_TRUE(requests.Add(LongRequests::kMinBodyBytes, [&] {
    begins.set_value();
    may_end.get_future().wait();
  }));
  begins.get_future().wait();
  std::promise<void> ends;
  EXPECT_TRUE(requests.Add(LongRequests::kMaxWaitingBytes, [&] { ends.set_value(); }));
  EXPECT_FALSE(requests.Add(LongRequests::kMinBodyBytes, [] { ADD_FAILURE(); }));
  may_end.set_value();
  ends.get_future().wait();
  EXPECT_TRUE(requests.Add(LongRequests::kMinBodyBytes, [] {}));
}

TEST_F(ApiServiceTest, LongBodiesAreHandledOnAnotherThread) {
  const std::string padding(LongRequests::kMinBodyBytes, 'x');
  const auto reply =
      Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"user", padding}});
  const Stopwatch watch;
  while (!reply->has_answered() && watch.Seconds() < 60) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Run({reply});
  }
  EXPECT_EQ(reply->sent.status, 200) << reply->sent.body;
  EXPECT_EQ(reply->SentJson()["usage"]["completion_tokens"], 3);
}

}  // namespace
}  // namespace kvlathe::api
