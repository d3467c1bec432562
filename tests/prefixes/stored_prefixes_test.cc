// Requests that begin behind stored prefixes answer with the tokens that they would answer without
// the store, whatever they share, and through eviction, preemption and restarts.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "../sequence_cases.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/prefixes/prefix_archive.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/capacity.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::MakeCaseModel;
using testing::RandomTokens;
using testing::SequenceCase;

constexpr int64_t kPlenty = int64_t{64} << 20;
constexpr int kStepTokens = 96;

// The small model with windows in one layer.
std::unique_ptr<Model> MakeWindowModel(const SequenceCase& of, int window, ThreadPool* threads) {
  ModelConfig c = SmallConfig();
  c.attention.kinds[0].window = window;
  auto weights = ModelWeights::Load(c, DType::kBf16, MakeRandomSource(3),
                                    MakeMachine(threads, SelectIsa().value()));
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse(of.spec), nullptr));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

struct Asked {
  Request request;
  RequestOutcome outcome;
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> all = request.prompt;
    all.insert(all.end(), outcome.tokens.begin(), outcome.tokens.end());
    return all;
  }
};

class StoredPrefixes : public ::testing::TestWithParam<SequenceCase> {
 protected:
  void Use(std::unique_ptr<Model> model) {
    model_ = std::move(model);
    model_->set_deterministic(true);
  }

  // What a request answers that begins with an empty cache whose prompt ends there. Where that is
  // not the end of its own prompt, it is a session's.
  std::vector<int32_t> Alone(const Request& request, int64_t n_prompt) {
    HostPool pool(kPlenty);
    Engine engine({model_.get()}, &pool, {.max_batch_tokens = kStepTokens});
    Request rest = request;
    Session session;
    if (n_prompt < std::ssize(request.prompt)) {
      session.tokens.assign(request.prompt.begin(), request.prompt.begin() + n_prompt);
      session.turn_ends = {static_cast<int>(n_prompt), static_cast<int>(n_prompt)};
      rest.prompt.erase(rest.prompt.begin(), rest.prompt.begin() + n_prompt);
    }
    std::vector<int32_t> tokens;
    const auto id = engine.Submit(
        rest, nullptr, [&](auto, const RequestOutcome& o) { tokens = o.tokens; },
        std::move(session));
    EXPECT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    return tokens;
  }

  void Submit(Engine* engine, Asked* asked) {
    const auto id = engine->Submit(asked->request, nullptr,
                                   [asked](auto, const RequestOutcome& o) { asked->outcome = o; });
    ASSERT_TRUE(id.ok()) << id.status();
  }

  // What requests look like, and the bytes that there are.
  struct Traffic {
    int most_prompt = 0;
    int most_answer = 0;
    double budget = 0;  // in times of what the largest request needs alone
    double prefixes = 0;
    bool restarts = false;  // with an archive
  };

  // A prompt that begins as an earlier request does, up to anywhere, and goes on by itself.
  Request DrawRequest(const Traffic& traffic, const std::vector<std::unique_ptr<Asked>>& earlier,
                      Random* random) {
    Request request;
    int n_more = static_cast<int>(1 + random->Below(traffic.most_prompt / 3));
    if (random->Below(2) == 0) n_more = std::min(n_more, 8);
    if (!earlier.empty() && random->Below(8) != 0) {
      const std::vector<int32_t> all = earlier[random->Below(earlier.size())]->tokens();
      const bool is_next_turn = random->Below(3) == 0;
      const size_t n = is_next_turn ? all.size() : 1 + random->Below(all.size());
      request.prompt.assign(all.begin(), all.begin() + static_cast<int64_t>(std::min<size_t>(
                                                           n, traffic.most_prompt - n_more)));
    }
    const std::vector<int32_t> more = RandomTokens(n_more, random->Below(1u << 20));
    request.prompt.insert(request.prompt.end(), more.begin(), more.end());
    request.max_tokens = static_cast<int>(1 + random->Below(traffic.most_answer));
    return request;
  }

  struct Sums {
    int64_t n_stored = 0;
    int n_preemptions = 0;
    int n_pressed = 0;  // requests
  };

  // Requests one after the other and a few at a time, under a budget.
  Sums ExpectSameAnswers(int n_requests, const Traffic& traffic) {
    const auto bytes = [&](double share) {
      return static_cast<int64_t>(share * static_cast<double>(MostAlone(traffic)));
    };
    const int64_t budget = bytes(traffic.budget), prefix_bytes = bytes(traffic.prefixes);
    HostPool pool(budget);
    Sums sums;
    {
      const ScratchFolder scratch;
      const auto open = [&]() -> std::unique_ptr<PrefixArchive> {
        if (!traffic.restarts) return nullptr;
        auto archive = PrefixArchive::Open(
            {.folder = scratch / "prefixes", .settles_in = std::chrono::milliseconds(0)});
        EXPECT_TRUE(archive.ok()) << archive.status();
        return *std::move(archive);
      };
      std::unique_ptr<PrefixArchive> archive = open();
      const auto make_engine = [&] {
        return std::make_unique<Engine>(
            std::vector<Model*>{model_.get()}, &pool,
            EngineOptions{.max_batch_tokens = kStepTokens,
                          .max_sequences = 6,
                          .prefix_bytes = prefix_bytes,
                          .archive = archive.get(),
                          .identities = {{GetParam().spec, "the model"}}});
      };
      std::unique_ptr<Engine> engine = make_engine();
      std::vector<std::unique_ptr<Asked>> asked;
      Random random(budget % 1000 + 5);
      while (std::ssize(asked) < n_requests) {
        if (traffic.restarts && random.Below(2) == 0) {
          engine.reset();
          archive.reset();
          archive = open();
          engine = make_engine();
        }
        const size_t n_before = asked.size(), n_new = 1 + random.Below(6);
        std::vector<std::unique_ptr<Asked>> batch;
        for (size_t i = 0; i < n_new; ++i) {
          batch.push_back(std::make_unique<Asked>());
          batch.back()->request = DrawRequest(traffic, asked, &random);
          Submit(engine.get(), batch.back().get());
          for (uint64_t n_steps = random.Below(4); n_steps > 0; --n_steps) engine->Step();
        }
        EXPECT_TRUE(engine->RunUntilIdle().ok());
        for (auto& one : batch) asked.push_back(std::move(one));
        for (size_t i = n_before; i < asked.size(); ++i) {
          const RequestOutcome& o = asked[i]->outcome;
          // What lost bits for want of memory may go on otherwise, but nobody begins behind it.
          sums.n_pressed += o.n_pressed_tokens > 0 ? 1 : 0;
          if (o.n_pressed_tokens > 0) continue;
          EXPECT_EQ(o.tokens, Alone(asked[i]->request, o.n_cache_prompt))
              << "request " << i << ", " << asked[i]->request.prompt.size() << " tokens, "
              << o.n_prefix_tokens << " stored, prompt of the cache " << o.n_cache_prompt;
          EXPECT_LT(o.n_prefix_tokens, std::ssize(asked[i]->request.prompt));
          sums.n_stored += o.n_prefix_tokens;
          sums.n_preemptions += o.n_preemptions;
        }
        EXPECT_EQ(pool.usage().needed_bytes(), 0);
        EXPECT_LE(pool.usage().kept_bytes, prefix_bytes);
      }
    }
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_LE(pool.usage().peak_bytes, budget);
    return sums;
  }

  // The most that one of the requests needs alone.
  int64_t MostAlone(const Traffic& traffic) const {
    int64_t most = 0;
    for (int n_prompt = 1; n_prompt <= traffic.most_prompt; ++n_prompt) {
      most = std::max(most, PeakSequenceBytes(model_->layout(), n_prompt + traffic.most_answer,
                                              kStepTokens, n_prompt));
    }
    return most;
  }

  // Where memory is short, stored prefixes go for requests, and requests for older ones.
  Sums ExpectAll() {
    const bool shares = SharesPrefixes(model_->layout());
    Sums all;
    for (const Traffic& traffic :
         {Traffic{350, 40, 50, 25}, Traffic{350, 40, 2, 1}, Traffic{350, 40, 1, 1},
          Traffic{350, 40, 2, 1, /*restarts=*/true}, Traffic{60, 160, 1.5, 0.5},
          Traffic{60, 160, 1.5, 0.5, /*restarts=*/true}}) {
      SCOPED_TRACE(::testing::Message()
                   << "prompts of " << traffic.most_prompt << ", room for " << traffic.budget
                   << (traffic.restarts ? ", with restarts" : ""));
      const Sums sums = ExpectSameAnswers(10, traffic);
      all.n_stored += sums.n_stored;
      all.n_preemptions += sums.n_preemptions;
      all.n_pressed += sums.n_pressed;
    }
    // Traffic whose prompts all part before they end may find no ended prompt to share.
    if (!SharesEndedPrompts(model_->layout())) {
      EXPECT_EQ(all.n_stored > 0, shares);
    }
    return all;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(StoredPrefixes, GiveTheSameAnswers) {
  Use(MakeCaseModel(GetParam(), &threads_, SelectIsa().value()));
  const Sums sums = ExpectAll();
  if (GetParam().spec == "none") {
    EXPECT_GT(sums.n_preemptions, 0);
  }
  if (GetParam().name == "LathePressure") {
    EXPECT_GT(sums.n_pressed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, StoredPrefixes, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

class StoredWindows : public StoredPrefixes {};

TEST_P(StoredWindows, GiveTheSameAnswers) {
  for (const int window : {20, 100}) {
    SCOPED_TRACE(::testing::Message() << "window " << window);
    Use(MakeWindowModel(GetParam(), window, &threads_));
    ExpectAll();
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, StoredWindows,
                         ::testing::Values(SequenceCase{"Uncompressed", "none"},
                                           SequenceCase{"Kivi", "kivi(bits=4,run=64)"},
                                           SequenceCase{"Gear", "gear(bits=4,run=64)"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvlathe
