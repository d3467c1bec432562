#include "server/api/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "server/api/api_fixture.h"
#include "server/api/routes/answer_json.h"

namespace kvlathe::api {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr char kGenerationPath[] = "/v1/completions";

Json Endless(int n_choices, bool is_stream) {
  return {{"prompt", {5, 6, 7, 8}}, {"n", n_choices},      {"max_tokens", 60},
          {"ignore_eos", true},     {"stream", is_stream}, {"seed", 3}};
}

class GenerationTest : public ApiTest {
 protected:
  void Steps(int n, const std::vector<std::shared_ptr<FakeReply>>& replies) {
    for (int i = 0; i < n; ++i) {
      engine_->Step();
      for (const auto& reply : replies) reply->RunTasks();
    }
  }
};

TEST(Usage, TellsOfPressedTokensWhereThereAreSome) {
  EXPECT_EQ(UsageJson({.prompt_tokens = 3, .output_tokens = 4}).count("pressed_tokens"), 0u);
  EXPECT_EQ(UsageJson({.prompt_tokens = 3, .pressed_tokens = 128})["pressed_tokens"], 128);
}

TEST(Usage, TellsOfDraftedTokensWhereThereAreSome) {
  EXPECT_EQ(UsageJson({.output_tokens = 4}).count("completion_tokens_details"), 0u);
  const Json details = UsageJson(
      {.output_tokens = 9, .drafted_tokens = 8, .accepted_tokens = 5})["completion_tokens_details"];
  EXPECT_EQ(details["accepted_prediction_tokens"], 5);
  EXPECT_EQ(details["rejected_prediction_tokens"], 3);
}

TEST_F(GenerationTest, AStreamBeginsOnceTheEngineHasTheRequest) {
  const auto reply = Post(kGenerationPath, Endless(1, true));
  EXPECT_FALSE(reply->has_answered());
  reply->RunTasks();
  EXPECT_TRUE(reply->is_stream);
  EXPECT_TRUE(reply->stream.empty());
  Steps(4, {reply});
  EXPECT_GE(reply->Events().size(), 2u);
  EXPECT_FALSE(reply->has_ended);
}

// Keeps what the engine says of answers.
class AnswerIds : public EngineObserver {
 public:
  void OnAnswered(RequestId, const AnsweredRequest& answered) override {
    ids.push_back(answered.request.answer_id);
    levels.push_back(answered.request.level);
  }
  std::vector<std::string> ids;
  std::vector<int> levels;
};

TEST_F(GenerationTest, AnswersAreKnownByTheRequestAndTheirNumber) {
  AnswerIds answers;
  Start({.observer = &answers});
  Answer(kGenerationPath, {{"prompt", {5, 6}}, {"max_tokens", 2}, {"ignore_eos", true}});
  Answer(kGenerationPath, {{"prompt", {5, 6}}, {"max_tokens", 2}, {"n", 2}, {"ignore_eos", true}});
  Answer(kGenerationPath, {{"prompt", {5, 6}}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(answers.ids, (std::vector<std::string>{"r1", "r2/0", "r2/1"}));
}

TEST_F(GenerationTest, WhoNamesNoLevelHasTheOneThatIsChosenNow) {
  AnswerIds answers;
  StartEngine({.observer = &answers});
  std::atomic<int> chosen = 1;
  ApiContext context = Context();
  context.default_level = &chosen;
  service_ = std::make_unique<ApiService>(context);
  const Json body = {{"prompt", {5, 6}}, {"max_tokens", 1}, {"ignore_eos", true}};
  Answer(kGenerationPath, body);
  Json named = body;
  named["kv"] = "none";
  Answer(kGenerationPath, named);
  named.erase("kv");
  named["model"] = "nano@none";
  Answer(kGenerationPath, named);
  chosen = 0;
  Answer(kGenerationPath, body);
  EXPECT_EQ(answers.levels, (std::vector<int>{1, 0, 0, 0}));
}

// A prompt that was read before, for the same key.
TEST_F(GenerationTest, SaysWhatOfAPromptWasStored) {
  Start({.prefix_bytes = int64_t{32} << 20});
  std::vector<int> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int>(3 + i * 7 % 200);
  const Json body = Greedy({{"prompt", prompt}, {"max_tokens", 5}, {"n", 2}});
  const auto ask = [&](const std::string& tenant, const Json& asked) {
    auto reply = std::make_shared<FakeReply>();
    service_->Handle({.id = "r",
                      .method = "POST",
                      .path = kGenerationPath,
                      .body = asked.dump(),
                      .tenant = tenant},
                     reply);
    Run({reply});
    EXPECT_EQ(reply->sent.status, 200) << reply->sent.body;
    return reply->SentJson();
  };
  const auto cached = [](const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  const Json first = ask("a", body), second = ask("a", body), other = ask("b", body);
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(cached(second), 99);
  EXPECT_EQ(observer_.ended[1].cached_tokens, 99);
  EXPECT_EQ(cached(other), 0);
  EXPECT_EQ(second["choices"], first["choices"]);
  EXPECT_EQ(other["choices"], first["choices"]);
  Json two = body;
  two["prompt"] = {prompt, std::vector<int>(prompt.begin(), prompt.begin() + 60)};
  EXPECT_EQ(cached(ask("a", two)), 99 + 59);
}

TEST_F(GenerationTest, AGoneClientTakesItsChoicesOutOfTheEngine) {
  for (const bool is_stream : {false, true}) {
    const auto reply = Post(kGenerationPath, Endless(3, is_stream));
    const auto other = Post(kGenerationPath, Endless(1, true));
    Steps(3, {reply, other});
    EXPECT_EQ(engine_->n_running(), 4);
    reply->GoAway();
    Steps(1, {reply, other});
    EXPECT_EQ(engine_->n_running(), 1);
    EXPECT_EQ(observer_.ended.back().http_status, 499);
    EXPECT_EQ(observer_.ended.back().finish_reason, "abort");
    EXPECT_EQ(observer_.ended.back().n_choices, 3);
    EXPECT_GT(observer_.ended.back().output_tokens, 0);
    Run({reply, other});
    EXPECT_EQ(pool_->usage().used_bytes, 0);
    EXPECT_EQ(observer_.ended.back().http_status, 200);
    EXPECT_FALSE(reply->has_ended);
    EXPECT_EQ(reply->sent.body, "");
  }
  EXPECT_EQ(observer_.ended.size(), 4u);
}

TEST_F(GenerationTest, AClientThatGoesAtOnceIsNotComputed) {
  const auto reply = std::make_shared<FakeReply>();
  reply->is_gone = true;
  http::Request request{
      .id = "gone", .method = "POST", .path = kGenerationPath, .body = Endless(2, true).dump()};
  service_->Handle(std::move(request), reply);
  Steps(1, {reply});
  EXPECT_EQ(engine_->n_running() + engine_->n_waiting(), 0);
  EXPECT_EQ(observer_.ended.back().http_status, 499);
  EXPECT_EQ(observer_.ended.back().output_tokens, 0);
}

TEST_F(GenerationTest, AFullQueueIsToldWithRetryAfter) {
  EngineOptions options;
  options.max_waiting = 3;
  Start(options);
  const auto first = Post(kGenerationPath, Endless(2, true));
  // Two of its three choices would have a place.
  const auto second = Post(kGenerationPath, Endless(3, true));
  EXPECT_EQ(second->sent.status, 429);
  EXPECT_FALSE(second->is_stream);
  EXPECT_THAT(second->sent.headers, Contains(Pair("Retry-After", "1")));
  const Json error = second->SentJson()["error"];
  EXPECT_EQ(error["type"], "rate_limit_error");
  EXPECT_EQ(error["code"], "queue_full");
  EXPECT_EQ(observer_.ended.back().http_status, 429);
  EXPECT_EQ(observer_.ended.back().level, "");  // so that metrics count no request
  // The choices that had a place are taken back, and the others go on.
  Run({first, second});
  EXPECT_TRUE(first->has_ended);
  EXPECT_EQ(second->n_answers, 1);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GenerationTest, ARequestThatCanNeverFitIsRefused) {
  StartEngine({}, int64_t{64} << 10);
  service_ = std::make_unique<ApiService>(Context());
  const Json error = Answer(kGenerationPath, Endless(1, true), 400)["error"];
  EXPECT_EQ(error["code"], "kv_memory_exceeded");
}

TEST_F(GenerationTest, AnErrorInMidStreamIsAnEventAndEndsIt) {
  std::atomic<bool> stops = false;
  EngineOptions options;
  options.is_interrupted = [&] { return stops.load(); };
  Start(options);
  const auto stream = Post(kGenerationPath, Endless(2, true));
  const auto whole =
      Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}});
  const auto response = Post("/v1/responses", {{"input", "Hello"}, {"stream", true}});
  Steps(5, {stream, whole, response});
  stops = true;  // as a server that must end now
  Run({stream, whole, response});
  EXPECT_TRUE(stream->has_ended);
  const std::vector<std::string> events = stream->Events();
  EXPECT_EQ(Json::parse(events.back())["error"]["code"], "shutting_down");
  EXPECT_THAT(stream->stream, Not(HasSubstr("[DONE]")));
  EXPECT_EQ(whole->sent.status, 503);
  EXPECT_TRUE(response->has_ended);
  const Json failed = Json::parse(response->Events().back());
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"]["code"], "shutting_down");
  ASSERT_EQ(observer_.ended.size(), 3u);
  for (const RequestEnded& ended : observer_.ended) {
    EXPECT_EQ(ended.error_code, "shutting_down");
    EXPECT_EQ(ended.finish_reason, "error");
    EXPECT_GT(ended.output_tokens, 3);  // of five steps
  }
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GenerationTest, IdleStreamsGetAComment) {
  ApiContext context = Context();
  context.ping_seconds = 0.02;
  service_ = std::make_unique<ApiService>(context);
  const auto reply = Post(kGenerationPath, Endless(1, true));
  const auto whole = Post(kGenerationPath, Endless(1, false));
  Stopwatch watch;
  while (reply->stream.empty() && watch.Seconds() < 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    reply->RunTasks();
    whole->RunTasks();
  }
  EXPECT_THAT(reply->stream, ::testing::StartsWith(": ping\n\n"));
  EXPECT_FALSE(whole->has_answered());
  Run({reply, whole});
  EXPECT_TRUE(reply->has_ended);
  const std::string ended = reply->stream;
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  reply->RunTasks();
  EXPECT_EQ(reply->stream, ended);
  service_.reset();  // whose thread ends
}

// One thread steps, others answer requests and take some of them back.
TEST_F(GenerationTest, ManyThreadsAskWhileOneSteps) {
  EngineOptions options;
  options.max_waiting = 8;
  Start(options);
  std::atomic<bool> is_over = false;
  std::thread stepping([&] {
    while (!is_over) {
      engine_->WaitForWork(std::chrono::milliseconds(5));
      engine_->Step();
    }
    while (engine_->Step()) {
    }
  });
  std::atomic<int> n_whole = 0, n_refused = 0, n_gone = 0;
  const auto ask = [&](int thread_idx) {
    for (int i = 0; i < 6; ++i) {
      auto reply = std::make_shared<FakeReply>();
      const bool is_stream = i % 2 == 0;
      const Json body = {{"prompt", {5, 6, thread_idx + 10}},
                         {"n", 2},
                         {"max_tokens", 12},
                         {"stream", is_stream},
                         {"ignore_eos", true}};
      service_->Handle({.id = "t", .method = "POST", .path = kGenerationPath, .body = body.dump()},
                       reply);
      Stopwatch watch;
      while (reply->sent.body.empty() && !reply->has_ended && watch.Seconds() < 30) {
        reply->RunTasks();
        if (i == 5 && reply->is_stream) break;
        std::this_thread::yield();
      }
      if (i == 5) {
        reply->GoAway();
        ++n_gone;
      } else if (reply->sent.status == 429) {
        ++n_refused;
      } else {
        EXPECT_TRUE(reply->has_ended || !reply->sent.body.empty());
        ++n_whole;
      }
      reply->RunTasks();
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) clients.emplace_back(ask, i);
  for (std::thread& client : clients) client.join();
  is_over = true;
  engine_->Wake();
  stepping.join();
  EXPECT_EQ(n_whole + n_refused + n_gone, 24);
  EXPECT_GT(n_whole, 0);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

}  // namespace
}  // namespace kvlathe::api
