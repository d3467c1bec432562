// Two engines, one of which reads prompts for the other over HTTP, in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_stream.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"
#include "server/http/http_server.h"
#include "server/prefill/prefill_client.h"
#include "server/prefill/prefill_route.h"
#include "server/prefill/prompt_question.h"
#include "server/serving_engine.h"

namespace kvlathe::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPoolBytes = int64_t{64} << 20;
constexpr char kKey[] = "key-of-both";

class PrefillTest : public ::testing::Test {
 protected:
  using Handler = http::HttpServer::Handler;

  static std::unique_ptr<Model> MakeModel(ThreadPool* threads) {
    auto weights = ModelWeights::Load(WideConfig(32), DType::kBf16, MakeRandomSource(3),
                                      MakeMachine(threads, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    return MakeSmallModel(*std::move(weights), "none");
  }
  EngineOptions Options() const {
    return {.max_batch_tokens = 96,
            .prefix_bytes = kPoolBytes / 2,
            .identities = {{"none", identity_of_model_}}};
  }

  // A prefill replica, with what stands before its route.
  void StartPrefill(const std::string& key = kKey) {
    reading_ = std::make_unique<ServingEngine>(
        std::vector<Model*>{reading_model_.get()}, &reading_pool_, Options(),
        [](const PoolUsage&) {}, nullptr);
    route_ =
        std::make_unique<PrefillRoute>(&reading_->engine(), Options().identities, key,
                                       PrefillRoute::Observer{[](const std::string&, int64_t) {},
                                                              [this](const SentPrompt& sent) {
                                                                const std::lock_guard lock(mutex_);
                                                                sent_.push_back(sent);
                                                              }});
    reading_->Start();
    Serve([this](http::Request request, std::shared_ptr<http::Reply> reply) {
      if (!route_->Allows(request)) return reply->Send({.status = 401, .body = "{}"});
      route_->Handle(request, std::move(reply));
    });
  }
  void Serve(Handler handler) {
    http::HttpServerOptions options;
    options.max_buffered_bytes = PrefillRoute::kMaxBufferedBytes;
    auto server = http::HttpServer::Start(options, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status();
    http_ = *std::move(server);
  }
  void TearDown() override {
    if (reading_ != nullptr) reading_->Stop();
    http_.reset();
    reading_.reset();
    EXPECT_EQ(reading_pool_.usage().used_bytes, 0);
  }

  // What a decode replica answers that asks these; its attempts are in attempts_.
  RequestOutcome Answer(const std::vector<int32_t>& prompt, std::vector<std::string> urls,
                        double timeout_seconds = 5) {
    PrefillClient client({.urls = std::move(urls),
                          .key = kKey,
                          .least_tokens = 64,
                          .timeout_seconds = timeout_seconds,
                          .on_attempt = [this](const PromptAttempt& attempt) {
                            const std::lock_guard lock(mutex_);
                            attempts_.push_back(attempt);
                          }});
    HostPool pool(kPoolBytes);
    RequestOutcome outcome;
    {
      EngineOptions options = Options();
      options.readers = &client;
      Engine engine({model_.get()}, &pool, options);
      outcome = Run(&engine, prompt);
    }
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return outcome;
  }
  static RequestOutcome Run(Engine* engine, const std::vector<int32_t>& prompt) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = 12;
    request.sampling.temperature = 0;
    RequestOutcome outcome;
    EXPECT_TRUE(
        engine->Submit(request, nullptr, [&](auto, const RequestOutcome& o) { outcome = o; }).ok());
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return outcome;
  }
  std::vector<int32_t> Alone(const std::vector<int32_t>& prompt) {
    HostPool pool(kPoolBytes);
    Engine engine({model_.get()}, &pool, {});
    return Run(&engine, prompt).tokens;
  }
  std::string Url() const { return "http://127.0.0.1:" + std::to_string(http_->port()); }
  // The prompt was read here, after one attempt that ended so.
  void ExpectReadHere(const std::string& reason, const std::string& why,
                      double timeout_seconds = 5) {
    attempts_.clear();
    const std::vector<int32_t> prompt = RandomPrompt(300, 1);
    const RequestOutcome outcome = Answer(prompt, {Url()}, timeout_seconds);
    EXPECT_EQ(outcome.tokens, Alone(prompt));
    EXPECT_EQ(outcome.n_prefix_tokens, 0);
    ASSERT_EQ(attempts_.size(), 1u);
    EXPECT_EQ(attempts_[0].reason, reason);
    EXPECT_THAT(MessageOf(attempts_[0].status), HasSubstr(why));
  }

  ThreadPool threads_{1}, reading_threads_{1};
  std::string identity_of_model_ = "model";
  std::unique_ptr<Model> model_ = MakeModel(&threads_);
  std::unique_ptr<Model> reading_model_ = MakeModel(&reading_threads_);
  HostPool reading_pool_{kPoolBytes};
  std::unique_ptr<ServingEngine> reading_;
  std::unique_ptr<PrefillRoute> route_;
  std::unique_ptr<http::HttpServer> http_;
  std::mutex mutex_;
  std::vector<PromptAttempt> attempts_;
  std::vector<SentPrompt> sent_;
};

TEST_F(PrefillTest, PromptsTravel) {
  StartPrefill();
  for (const int n : {80, 300, 700}) {
    const std::vector<int32_t> prompt = RandomPrompt(n, 1);
    const RequestOutcome outcome = Answer(prompt, {Url()});
    EXPECT_EQ(outcome.tokens, Alone(prompt));
    EXPECT_EQ(outcome.n_prefix_tokens, n - 1);
  }
  ASSERT_EQ(attempts_.size(), 3u);
  for (const PromptAttempt& attempt : attempts_) EXPECT_EQ(attempt.reason, "");
  ASSERT_EQ(sent_.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sent_[i].n_bytes, attempts_[i].n_bytes);
}

TEST_F(PrefillTest, TheNextReplicaIsAskedWhereOneFails) {
  StartPrefill();
  const std::vector<int32_t> prompt = RandomPrompt(300, 1);
  const RequestOutcome outcome = Answer(prompt, {"http://127.0.0.1:1", Url()});
  EXPECT_EQ(outcome.tokens, Alone(prompt));
  EXPECT_EQ(outcome.n_prefix_tokens, 299);
  ASSERT_EQ(attempts_.size(), 2u);
  EXPECT_EQ(attempts_[0].reason, "unreachable");
  EXPECT_EQ(attempts_[1].reason, "");
}

TEST_F(PrefillTest, AnotherKeyIsRefused) {
  StartPrefill("another-key");
  ExpectReadHere("refused", "401");
}

TEST_F(PrefillTest, AnotherModelIsRefused) {
  StartPrefill();
  identity_of_model_ = "another model";
  ExpectReadHere("refused", "another model");
}

TEST_F(PrefillTest, HostileAnswersEndInOneError) {
  const auto stream_of = [](std::vector<std::string> pieces, bool ends) {
    return [pieces = std::move(pieces), ends](const http::Request&,
                                              const std::shared_ptr<http::Reply>& reply) {
      reply->BeginStream(http::StreamKind::kBytes);
      for (const std::string& piece : pieces) reply->Write(piece);
      if (ends) reply->EndStream();
    };
  };
  const SequenceStreamWriter writer({"none", "model"}, &model_->layout(),
                                    {.n_tokens = 299, .n_prompt = 300});
  const SequenceStreamWriter other({"none", "model 2"}, &model_->layout(),
                                   {.n_tokens = 299, .n_prompt = 300});
  const std::string part("\1\0\0\0\x40\0\0\0\0\0\0\0\1\0\0\0", 16);
  Serve(stream_of({"<html>" + std::string(1000, 'x')}, true));
  ExpectReadHere("broken", "not the stream of a prompt");
  Serve(stream_of({writer.Head(), part, std::string(68, '\0')}, true));
  ExpectReadHere("broken", "checksum of part 0");
  Serve(stream_of({writer.Head()}, true));
  ExpectReadHere("broken", "not whole");
  Serve(stream_of({writer.Head()}, false));
  ExpectReadHere("broken", "broke off");
  Serve(stream_of({other.Head()}, true));
  ExpectReadHere("broken", "another model");
  Serve(stream_of({}, true));
  ExpectReadHere("broken", "behind 0 bytes");
}

TEST_F(PrefillTest, WhoSendsNothingIsNotWaitedFor) {
  std::vector<std::shared_ptr<http::Reply>> kept;
  Serve([&](const http::Request&, std::shared_ptr<http::Reply> reply) {
    reply->BeginStream(http::StreamKind::kBytes);
    const std::lock_guard lock(mutex_);
    kept.push_back(std::move(reply));
  });
  ExpectReadHere("timeout", "nothing new", /*timeout_seconds=*/0.2);
  kept.clear();
}

TEST(PrefillUrl, HasAHostAndNoPath) {
  for (const char* url : {"http://host:8081", "https://10.0.0.2", "http://[::1]:80/"}) {
    EXPECT_TRUE(CheckPrefillUrl(url).ok()) << url;
  }
  for (const char* url : {"host:8081", "ftp://host", "http://host/v1", "http://", ""}) {
    EXPECT_EQ(CheckPrefillUrl(url).code(), StatusCode::kInvalidArgument) << url;
  }
}

TEST(PromptQuestion, IsReadAsItIsWritten) {
  const PromptQuestion question = {.kv = "none",
                                   .place = std::string(64, 'a'),
                                   .rate = 0.5,
                                   .salt = std::string(64, '0'),
                                   .tokens = {1, 2, 3}};
  const auto read = ParsePromptQuestion(ToJson(question));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kv, question.kv);
  EXPECT_EQ(read->rate, question.rate);
  EXPECT_EQ(read->tokens, question.tokens);
  EXPECT_FALSE(ParsePromptQuestion("{}").ok());
  EXPECT_FALSE(ParsePromptQuestion(std::string(100000, '[')).ok());
}

}  // namespace
}  // namespace kvlathe::server
