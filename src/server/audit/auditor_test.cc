#include "server/audit/auditor.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "evaluation/quality.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::server {
namespace {

constexpr int64_t kPlenty = int64_t{64} << 20;

class AuditorTest : public ::testing::Test, public EngineObserver {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::shared_ptr<ModelWeights> shared = *std::move(weights);
    for (const char* spec : {"int8", "none", "kivi(bits=2,group=32,run=64,buffer=64)"}) {
      auto model = CreateModel(shared, PartsOf(Spec::Parse(spec).value(), nullptr));
      ASSERT_TRUE(model.ok()) << model.status();
      levels_.push_back(*std::move(model));
      names_.emplace_back(spec);
    }
  }
  void Start(AuditOptions options) {
    options.seed = 1;
    metrics_.emplace(&registry_, std::map<std::string, std::string>{{"model_name", "m"}},
                     options.share);
    auditor_ = std::make_unique<Auditor>(
        AuditedModels{Models()[1], Models(), names_, &threads_}, std::move(options), &*metrics_,
        [this](std::string_view event, const nlohmann::ordered_json& fields) {
          events_.emplace_back(event, fields);
        });
    engine_ = std::make_unique<Engine>(Models(), &pool_, EngineOptions{.observer = this});
  }
  std::vector<Model*> Models() const {
    std::vector<Model*> models;
    for (const auto& level : levels_) models.push_back(level.get());
    return models;
  }
  void OnAnswered(RequestId, const AnsweredRequest& answered) override {
    auditor_->Offer(answered);
    last_.tokens.assign(answered.tokens.begin(), answered.tokens.end());
    last_.n_read = answered.n_read;
  }
  Engine::RequestId Submit(int level, int n_prompt = 40, int max_tokens = 60,
                           const std::string& answer_id = "a") {
    Request request;
    for (int t = 0; t < n_prompt; ++t) request.prompt.push_back((t * 37 + 5) % kSmallVocabulary);
    request.max_tokens = max_tokens;
    request.level = level;
    request.answer_id = answer_id;
    const auto id = engine_->Submit(std::move(request), nullptr, nullptr);
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  void Answer(int level, int n_prompt = 40, int max_tokens = 60) {
    Submit(level, n_prompt, max_tokens);
    EXPECT_TRUE(engine_->RunUntilIdle().ok());
  }
  void AuditAll() {
    while (auditor_->has_work()) auditor_->WorkIdle();
    EXPECT_EQ(auditor_->usage().used_bytes, 0);
  }
  nlohmann::ordered_json Rows() const { return auditor_->ToJson()["rows"]; }
  std::string Metrics() const {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  ThreadPool threads_{2};
  std::vector<std::unique_ptr<Model>> levels_;
  std::vector<std::string> names_;
  prometheus::Registry registry_;
  std::optional<AuditMetrics> metrics_;
  std::unique_ptr<Auditor> auditor_;
  HostPool pool_{kPlenty};
  std::unique_ptr<Engine> engine_;
  std::vector<std::pair<std::string, nlohmann::ordered_json>> events_;
  GivenAnswer last_;
};

TEST_F(AuditorTest, SaysWhatCompareSaysOfTheTokensOfAnAnswer) {
  Start({.share = 1});
  Answer(2, 100, 100);
  AuditAll();
  const EvaluationText text = {{last_.tokens}, {std::vector<int>(200, 1)}};
  Model* const models[] = {levels_[1].get(), levels_[2].get()};
  const auto qualities = MeasureQuality(models, text, kPlenty, &threads_, nullptr);
  ASSERT_TRUE(qualities.ok()) << qualities.status();
  ASSERT_EQ(Rows().size(), 1u);
  const nlohmann::ordered_json row = Rows()[0];
  EXPECT_EQ(row["kv"], names_[2]);
  EXPECT_EQ(row["positions"], 100);
  const double kl = row["kl"], wanted = (*qualities)[1].kl;
  EXPECT_GT(wanted, 1e-4);
  EXPECT_NEAR(kl, wanted, 1e-3 * wanted);
  EXPECT_EQ(row["top1_agreement"].get<double>(), (*qualities)[1].top1_agreement);
}

TEST_F(AuditorTest, CountsByCacheInMetricsAndJson) {
  Start({.share = 1});
  Answer(0);
  Answer(0);
  Answer(2);
  AuditAll();
  ASSERT_EQ(Rows().size(), 2u);
  EXPECT_EQ(Rows()[0]["answers"], 2);
  EXPECT_EQ(Rows()[1]["answers"], 1);
  const std::string metrics = Metrics();
  const auto has = [&](const std::string& name, const std::string& kv, int value) {
    const std::string line =
        name + "{kv=\"" + kv + "\",model_name=\"m\"} " + std::to_string(value) + "\n";
    return metrics.find(line) != std::string::npos;
  };
  EXPECT_TRUE(has("kvlathe_audit_requests_total", names_[0], 2)) << metrics;
  EXPECT_TRUE(has("kvlathe_audit_positions_total", names_[0], 120));
  EXPECT_TRUE(has("kvlathe_audit_kl_count", names_[0], 120));
  EXPECT_TRUE(has("kvlathe_audit_positions_total", names_[2], 60));
  EXPECT_NE(metrics.find("kvlathe_audit_share{model_name=\"m\"} 1"), std::string::npos);
}

TEST_F(AuditorTest, DrawsTheShareOfAnswers) {
  Start({.share = 0.25, .max_queued = 1000});
  for (int i = 0; i < 200; ++i) Answer(0, 2, 1);
  const int n_queued = auditor_->ToJson()["queued"];
  EXPECT_GT(n_queued, 30);
  EXPECT_LT(n_queued, 70);
}

TEST_F(AuditorTest, LeavesOutWhatFailedWasCancelledIsUncompressedOrAnswersNobody) {
  Start({.share = 1});
  Answer(1);
  Submit(0, 40, 60, "");
  EXPECT_TRUE(engine_->RunUntilIdle().ok());
  const auto cancelled = Submit(0);
  for (int i = 0; i < 10; ++i) engine_->Step();
  engine_->Cancel(cancelled);
  EXPECT_FALSE(engine_->RunUntilIdle().ok() && engine_->n_running() > 0);
  Request failing;
  failing.prompt = {1, 2, 3};
  failing.answer_id = "f";
  failing.constraint = nullptr;
  failing.sampling.temperature = 0;
  class Refusing : public TokenConstraint {
   public:
    void Mask(std::span<float>) override {}
    Status Accept(int32_t) override { return Error(StatusCode::kInternal, "no"); }
    bool is_complete() const override { return false; }
  };
  failing.constraint = std::make_shared<Refusing>();
  ASSERT_TRUE(engine_->Submit(std::move(failing), nullptr, nullptr).ok());
  EXPECT_FALSE(engine_->RunUntilIdle().ok());
  EXPECT_FALSE(auditor_->has_work());
  EXPECT_TRUE(auditor_->ToJson()["skipped"].empty());
  Answer(0);
  EXPECT_TRUE(auditor_->has_work());
}

TEST_F(AuditorTest, SkipsWhatTheQueueOrItsMemoryDoesNotHold) {
  const GivenAnswer longest = {.tokens = std::vector<int32_t>(100, 1),
                               .n_read = 40,
                               .n_cache_prompt = 40,
                               .n_generated = 60};
  const int64_t n_bytes = AnswerReplay::PeakBytes(longest, *levels_[1], levels_[0]->layout());
  Start({.share = 1, .memory_bytes = n_bytes, .max_queued = 3});
  for (int i = 0; i < 5; ++i) Answer(0);
  Answer(0, 300, 60);
  EXPECT_EQ(auditor_->ToJson()["queued"], 3);
  EXPECT_EQ(auditor_->ToJson()["skipped"]["queue_full"], 3);
  AuditAll();
  Answer(0, 300, 60);
  EXPECT_EQ(auditor_->ToJson()["skipped"]["too_long"], 1);
  EXPECT_FALSE(auditor_->has_work());
  EXPECT_EQ(Rows()[0]["answers"], 3);
  EXPECT_LE(auditor_->usage().peak_bytes, n_bytes);
  EXPECT_NE(Metrics().find("reason=\"too_long\"} 1"), std::string::npos) << Metrics();
}

// Each piece takes a second of a clock that goes on when it is asked.
TEST_F(AuditorTest, BesideRequestsItKeepsItsShare) {
  double now = 0;
  Start({.share = 0.1, .max_queued = 1000, .seconds_now = [&] { return now += 1; }});
  while (auditor_->ToJson()["queued"] < 20) Answer(0);
  const double begin = now;
  double engine_seconds = 0;
  for (int i = 0; i < 500; ++i) {
    engine_seconds += 0.5;
    auditor_->AfterStep(0.5);
  }
  const double audit_seconds = now - begin;  // two looks at the clock a piece: a second in between
  EXPECT_GT(audit_seconds, 10);
  EXPECT_LE(audit_seconds / 2, 0.1 * (engine_seconds + audit_seconds / 2) + 1);
}

TEST_F(AuditorTest, ActsOnlyWhereItIsTold) {
  const auto answer_often = [&] {
    for (int i = 0; i < 12; ++i) Answer(0, 40, 60);
    AuditAll();
  };
  Start({.share = 1, .max_queued = 100});
  answer_often();
  EXPECT_EQ(auditor_->default_level(), nullptr);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(Rows().size(), 1u);

  Start({.share = 1, .max_queued = 100, .acts_within = 100});
  ASSERT_NE(auditor_->default_level(), nullptr);
  EXPECT_EQ(*auditor_->default_level(), 0);
  answer_often();
  EXPECT_EQ(Rows().size(), 2u);  // with every level but none
  EXPECT_EQ(*auditor_->default_level(), 2);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].first, "audit_level");
  EXPECT_EQ(events_[0].second["kv"], names_[2]);
  EXPECT_EQ(events_[0].second["was"], names_[0]);
  EXPECT_EQ(auditor_->ToJson()["default_kv"], names_[2]);

  events_.clear();
  Start({.share = 1, .max_queued = 100, .acts_within = 0});
  answer_often();
  EXPECT_EQ(*auditor_->default_level(), 1);  // nothing else is within nothing
}

}  // namespace
}  // namespace kvlathe::server
