// Tests run the service on models/lathe-nano, and step its engine themselves.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "chat/template_files.h"
#include "io/safetensors/safetensors.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "server/api/api_service.h"
#include "server/api/fake_reply.h"

namespace kvlathe::api {

inline Json Greedy(Json body) {
  body["temperature"] = 0;
  return body;
}

// The model, once for all tests. Levels are "none" and "int8".
class NanoModel {
 public:
  static const NanoModel& Get() {
    static const NanoModel kModel;
    return kModel;
  }
  std::vector<Model*> levels() const { return {plain_.get(), sealed_.get()}; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return plain_->config(); }
  const ChatTemplate& chat_template() const { return *chat_template_; }

 private:
  NanoModel();
  std::unique_ptr<Model> Make(const std::shared_ptr<ModelWeights>& weights,
                              const std::string& spec);

  ThreadPool threads_{2};
  std::unique_ptr<Model> plain_, sealed_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
};

class RecordingObserver : public ApiObserver {
 public:
  void OnBegan(const RequestBegan& request) override {
    const std::lock_guard lock(mutex_);
    began.push_back(request);
  }
  void OnEnded(const RequestEnded& request) override {
    const std::lock_guard lock(mutex_);
    ended.push_back(request);
  }
  size_t n_ended() {
    const std::lock_guard lock(mutex_);
    return ended.size();
  }
  std::vector<RequestBegan> began;
  std::vector<RequestEnded> ended;

 private:
  std::mutex mutex_;
};

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  ApiContext Context() {
    const NanoModel& model = NanoModel::Get();
    ApiContext context;
    context.engine = engine_.get();
    context.levels = {{"none", model.levels()[0]}, {"int8", model.levels()[1]}};
    context.tokenizer = &model.tokenizer();
    context.chat_template = &model.chat_template();
    context.chat_adds_bos = true;
    context.model_names = {"lathe-nano", "nano"};
    context.created = 1700000000;
    context.context_tokens = 256;
    context.end_ids = {2};
    context.observer = &observer_;
    context.ping_seconds = 0;
    return context;
  }
  // Another engine, without a service.
  void StartEngine(const EngineOptions& options, int64_t budget = int64_t{64} << 20) {
    service_.reset();
    engine_.reset();
    pool_ = std::make_unique<HostPool>(budget);
    engine_ = std::make_unique<Engine>(NanoModel::Get().levels(), pool_.get(), options);
  }
  void Start(const EngineOptions& options) {
    StartEngine(options);
    service_ = std::make_unique<ApiService>(Context());
  }

  // Without a step of the engine.
  std::shared_ptr<FakeReply> Begin(const std::string& method, const std::string& path,
                                   const std::string& body = "") {
    auto reply = std::make_shared<FakeReply>();
    http::Request request;
    request.id = "r" + std::to_string(++n_requests_);
    request.method = method;
    request.path = path;
    request.body = body;
    service_->Handle(std::move(request), reply);
    return reply;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const Json& body) {
    return Begin("POST", path, body.dump());
  }
  // Until the engine has nothing to do.
  void Run(const std::vector<std::shared_ptr<FakeReply>>& replies) {
    while (engine_->Step()) {
      for (const auto& reply : replies) reply->RunTasks();
    }
    for (const auto& reply : replies) reply->RunTasks();
  }
  // The whole answer, which is expected to be that status.
  Json Answer(const std::string& path, const Json& body, int status = 200) {
    const auto reply = Post(path, body);
    Run({reply});
    EXPECT_EQ(reply->n_answers, 1);
    EXPECT_EQ(reply->sent.status, status) << reply->sent.body;
    EXPECT_EQ(pool_->usage().used_bytes, 0);
    return reply->SentJson();
  }
  // The same of a long body, which another thread handles; such that nothing is generated.
  Json LongAnswer(const std::string& path, const Json& body, int status = 200) {
    const size_t n_before = observer_.n_ended();
    const auto reply = Post(path, body);
    const Stopwatch watch;
    while (observer_.n_ended() == n_before && watch.Seconds() < 60) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(observer_.n_ended(), n_before + 1);
    EXPECT_EQ(reply->sent.status, status) << reply->sent.body.substr(0, 1000);
    return reply->SentJson();
  }
  // The events of a stream that ends.
  std::vector<Json> Stream(const std::string& path, const Json& body, bool ends_with_done = true) {
    const auto reply = Post(path, body);
    Run({reply});
    EXPECT_TRUE(reply->is_stream && reply->has_ended) << reply->sent.body;
    EXPECT_EQ(reply->n_answers, 1);
    std::vector<std::string> events = reply->Events();
    if (ends_with_done && !events.empty()) {
      EXPECT_EQ(events.back(), "[DONE]");
      events.pop_back();
    }
    std::vector<Json> json;
    for (const std::string& event : events) json.push_back(Json::parse(event));
    return json;
  }

  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Engine> engine_;
  RecordingObserver observer_;
  std::unique_ptr<ApiService> service_;
  int n_requests_ = 0;
};

}  // namespace kvlathe::api
