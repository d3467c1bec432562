// Prompts that one engine reads and another answers, for every spec: the answers are those of one
// engine, to the last token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../sequence_cases.h"
#include "base/random.h"
#include "engine/engine.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_stream.h"
#include "kv/capacity.h"

namespace kvlathe {
namespace {

using testing::MakeCaseModel;
using testing::RandomTokens;
using testing::SequenceCase;

constexpr int64_t kPlentyBytes = int64_t{64} << 20;
constexpr int kChunkTokens = 96;

// Keeps what it is given. With `is_slow` it has room in every third step only.
class KeepingSink : public PromptSink {
 public:
  explicit KeepingSink(bool is_slow) : is_slow_(is_slow) {}
  bool HasRoom() override { return !is_slow_ || ++n_asked_ % 3 == 0; }
  void Write(std::string bytes) override { stream.push_back(std::move(bytes)); }

  std::vector<std::string> stream;

 private:
  bool is_slow_;
  int n_asked_ = 0;
};

// Has another engine read what it is asked for, and may damage what comes of it.
class OtherEngine : public PromptReaders {
 public:
  explicit OtherEngine(Engine* engine) : engine_(engine) {}

  int least_tokens() const override { return 64; }
  std::unique_ptr<DistantPrompt> Ask(const Question& question) override {
    ++n_asked;
    Request request;
    request.prompt = {question.tokens.begin(), question.tokens.end()};
    request.max_tokens = 1;
    const auto sink = std::make_shared<KeepingSink>(is_slow);
    request.prompt_sink = sink;
    RequestOutcome outcome;
    EXPECT_TRUE(engine_
                    ->Submit(std::move(request), nullptr,
                             [&](auto, const RequestOutcome& o) { outcome = o; })
                    .ok());
    EXPECT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_EQ(outcome.finish_reason, FinishReason::kStop);
    EXPECT_TRUE(outcome.tokens.empty());
    SequenceStreamReader reader("other", *question.key->identity, question.key->layout,
                                static_cast<int>(std::ssize(question.tokens)) - 1);
    for (const std::string& part : sink->stream) {
      const Status status = reader.Add(part);
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(reader.is_whole());
    n_parts += reader.n_parts();
    return std::make_unique<Came>(this, reader.TakeFile());
  }
  void WaitForChange(std::chrono::milliseconds) override {}

  bool is_slow = false;
  bool damages = false;
  int n_asked = 0;
  int n_parts = 0;
  int n_refused = 0;

 private:
  class Came : public DistantPrompt {
   public:
    Came(OtherEngine* from, std::string file) : from_(from), file_(std::move(file)) {}
    State state() const override { return n_looks_++ < 2 ? State::kUnderWay : State::kRead; }
    std::string TakeFile() override {
      if (from_->damages) file_[file_.size() / 2] ^= 1;
      return std::move(file_);
    }
    void Refuse(const Status& why) override {
      const bool expected = why.code() == StatusCode::kDataLoss ||
                            (!from_->damages && why.code() == StatusCode::kResourceExhausted);
      EXPECT_TRUE(expected) << why;
      ++from_->n_refused;
    }

   private:
    OtherEngine* from_;
    std::string file_;
    mutable int n_looks_ = 0;
  };

  Engine* engine_;
};

class TravellingPrompts : public ::testing::TestWithParam<SequenceCase> {
 protected:
  void SetUp() override {
    model_ = MakeCaseModel(GetParam(), &threads_, SelectIsa().value());
    model_->set_deterministic(true);
    ASSERT_TRUE(SharesPrefixes(model_->layout())) << WhyNothingIsShared(model_->layout());
  }
  EngineOptions Options() const {
    return {.max_batch_tokens = kChunkTokens,
            .prefix_bytes = kPlentyBytes / 2,
            .identities = {{GetParam().spec, "model"}}};
  }
  static std::vector<RequestOutcome> Answer(Engine* engine,
                                            const std::vector<std::vector<int32_t>>& prompts) {
    std::vector<RequestOutcome> outcomes(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request request;
      request.prompt = prompts[i];
      request.max_tokens = 20;
      request.sampling.temperature = 0;
      request.refuses_pressure = true;  // which answers depend on
      EXPECT_TRUE(engine
                      ->Submit(std::move(request), nullptr,
                               [&outcomes, i](auto, const RequestOutcome& o) { outcomes[i] = o; })
                      .ok());
    }
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return outcomes;
  }
  std::vector<int32_t> Alone(const std::vector<int32_t>& prompt) {
    HostPool pool(kPlentyBytes);
    Engine engine({model_.get()}, &pool, {.max_batch_tokens = kChunkTokens});
    return Answer(&engine, {prompt})[0].tokens;
  }
  static std::vector<std::vector<int32_t>> Prompts() {
    std::vector<std::vector<int32_t>> prompts;
    for (const int n : {65, 66, 129, 200, 301, 400}) prompts.push_back(RandomTokens(n, n));
    prompts.push_back(prompts.back());  // goes on as another does
    for (const int32_t token : RandomTokens(80, 3)) prompts.back().push_back(token);
    return prompts;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(TravellingPrompts, GiveTheAnswersOfOneEngine) {
  const auto prompts = Prompts();
  for (const bool is_slow : {false, true}) {
    HostPool reading_pool(kPlentyBytes), answering_pool(kPlentyBytes);
    {
      Engine reading({model_.get()}, &reading_pool, Options());
      OtherEngine other(&reading);
      other.is_slow = is_slow;
      EngineOptions options = Options();
      options.readers = &other;
      Engine answering({model_.get()}, &answering_pool, options);
      for (size_t i = 0; i + 1 < prompts.size(); ++i) {
        const RequestOutcome outcome = Answer(&answering, {prompts[i]})[0];
        EXPECT_EQ(outcome.tokens, Alone(prompts[i])) << prompts[i].size();
        EXPECT_EQ(outcome.n_prefix_tokens, std::ssize(prompts[i]) - 1);
      }
      EXPECT_EQ(other.n_asked, std::ssize(prompts) - 1);
      EXPECT_GT(other.n_parts, other.n_asked);  // some of it comes before all is read
      EXPECT_EQ(other.n_refused, 0);
    }
    EXPECT_EQ(reading_pool.usage().used_bytes, 0);
    EXPECT_EQ(answering_pool.usage().used_bytes, 0);
  }
}

TEST_P(TravellingPrompts, WhatDoesNotComeWholeIsReadHere) {
  HostPool reading_pool(kPlentyBytes), answering_pool(kPlentyBytes);
  Engine reading({model_.get()}, &reading_pool, Options());
  OtherEngine other(&reading);
  other.damages = true;
  EngineOptions options = Options();
  options.readers = &other;
  Engine answering({model_.get()}, &answering_pool, options);
  const std::vector<int32_t> prompt = RandomTokens(300, 1);
  const RequestOutcome outcome = Answer(&answering, {prompt})[0];
  EXPECT_EQ(outcome.tokens, Alone(prompt));
  EXPECT_EQ(outcome.n_prefix_tokens, 0);
  EXPECT_EQ(other.n_refused, 1);
}

// Many at a time, where both have little memory: some are preempted while they are sent.
TEST_P(TravellingPrompts, SurviveWantOfMemory) {
  const auto prompts = Prompts();
  const int64_t most_bytes = LeastBytesAlone(model_->layout(), std::ssize(prompts.back()) + 20,
                                             kChunkTokens, std::ssize(prompts.back()));
  HostPool reading_pool(kPlentyBytes), answering_pool(2 * most_bytes);
  Engine reading({model_.get()}, &reading_pool, Options());
  OtherEngine other(&reading);
  EngineOptions options = Options();
  options.readers = &other;
  options.prefix_bytes = most_bytes;
  Engine answering({model_.get()}, &answering_pool, options);
  const auto outcomes = Answer(&answering, prompts);
  for (size_t i = 0; i + 1 < prompts.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, Alone(prompts[i])) << prompts[i].size();
  }
  EXPECT_GT(other.n_asked, 0);

  std::vector<std::shared_ptr<KeepingSink>> sinks;
  HostPool small_pool(most_bytes + most_bytes / 2);
  EngineOptions small = Options();
  small.prefix_bytes = 0;
  Engine crowded({model_.get()}, &small_pool, small);
  for (const auto& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = 1;
    sinks.push_back(std::make_shared<KeepingSink>(/*is_slow=*/true));
    request.prompt_sink = sinks.back();
    EXPECT_TRUE(crowded.Submit(std::move(request), nullptr, nullptr).ok());
  }
  EXPECT_TRUE(crowded.RunUntilIdle().ok());
  EXPECT_EQ(small_pool.usage().used_bytes, 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    SequenceStreamReader reader("crowded", Options().identities[0], &model_->layout(),
                                static_cast<int>(std::ssize(prompts[i])) - 1);
    for (const std::string& part : sinks[i]->stream) EXPECT_TRUE(reader.Add(part).ok());
    EXPECT_TRUE(reader.is_whole());
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, TravellingPrompts, ::testing::ValuesIn(testing::SharingCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvlathe
