// Everything that a cache can be and do, on a machine whose memory the host cannot touch and which
// runs what it is asked for as late as it may (cpu/biting/biting_machine.h): whatever reads or
// writes rows, weights or activations past the verbs ends this program.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpu/biting/biting_machine.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "io/scratch_folder.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_file.h"
#include "kv/spec/spec.h"
#include "model/small_config.h"
#include "runtime/machines/machine_choice.h"
#include "sequence_cases.h"

namespace kvlathe {
namespace {

using testing::Feed;
using testing::MakeCaseModel;
using testing::PressOldest;
using testing::RandomTokens;
using testing::SequenceCase;

constexpr int64_t kBudgetBytes = int64_t{64} << 20;

class GuardedCache : public ::testing::TestWithParam<SequenceCase> {
 protected:
  // A prompt of n_prompt tokens, decoded further, saved, restored, copied, and decoded to past the
  // next runs and prunes. What was computed on the way.
  std::vector<std::string> Live(std::shared_ptr<Machine> machine, int n_prompt) {
    std::vector<std::string> logits;
    const std::unique_ptr<Model> model = MakeCaseModel(GetParam(), std::move(machine));
    BlockPool pool(kBudgetBytes, &model->machine().memory());
    const auto new_cache = [&] { return std::make_unique<SequenceCache>(&model->layout(), &pool); };
    const auto feed = [&](SequenceCache* cache, int n, uint64_t seed, size_t piece) {
      logits.push_back(Feed(model.get(), cache, RandomTokens(n, seed), piece));
    };
    auto original = new_cache();
    original->set_n_prompt(n_prompt, 300);
    feed(original.get(), n_prompt, 1, 64);
    PressOldest(model.get(), original.get());
    feed(original.get(), 70, 2, 1);
    PressOldest(model.get(), original.get());
    const SequenceIdentity identity = {Spec::Parse(GetParam().spec)->ToString(), "a model"};
    const std::string path = folder_ / "sequence";
    EXPECT_TRUE(SaveSequence(*original, identity, "", path).ok());
    auto restored = new_cache();
    const auto state = RestoreSequence(path, {identity, &model->layout(), 1024}, restored.get());
    EXPECT_TRUE(state.ok()) << state.status();
    feed(restored.get(), 30, 3, 1);
    auto copied = restored->Copy();
    EXPECT_TRUE(copied.ok()) << copied.status();
    if (!copied.ok()) return logits;
    restored->Clear();
    feed(copied->get(), 80, 4, 7);
    feed(original.get(), 30, 3, 1);
    EXPECT_EQ(original->bytes().total() + (*copied)->bytes().total(), pool.usage().used_bytes);
    return logits;
  }

  ScratchFolder folder_;
  ThreadPool threads_{2};
  std::shared_ptr<Machine> biting_ = std::make_shared<BitingMachine>(&threads_);
};

TEST_P(GuardedCache, LivesAsOnAMachineThatDoesNotBite) {
  const std::vector<std::string> logits = Live(biting_, 210);
  ASSERT_EQ(logits.size(), 5u);
  EXPECT_TRUE(logits == Live(MakeMachine(&threads_, Isa::kScalar), 210));
  // The restored sequence went on as the original does.
  EXPECT_TRUE(logits[2] == logits[4]);
}

// Long enough for the budgets of the recorded specs.
class RecordedSpec : public GuardedCache {};
TEST_P(RecordedSpec, LivesOnAMachineThatBites) {
  const std::vector<std::string> logits = Live(biting_, 330);
  ASSERT_EQ(logits.size(), 5u);
  EXPECT_TRUE(logits[2] == logits[4]);
}

INSTANTIATE_TEST_SUITE_P(Specs, RecordedSpec, ::testing::ValuesIn(testing::RecordedCases()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Specs, GuardedCache, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

// What four requests answer that outgrow `budget`, so that some wait or give way and come back, and
// then the first one's session, saved, loaded and gone on with.
std::vector<std::vector<int32_t>> Answers(Model* model, int64_t budget) {
  BlockPool pool(budget, &model->machine().memory());
  std::vector<std::vector<int32_t>> answers(5);
  int n_preemptions = 0;
  Session session;
  {
    Engine engine({model}, &pool, {.max_batch_tokens = 48});
    for (int i = 0; i < 4; ++i) {
      const auto id = engine.Submit({.prompt = RandomTokens(100 + 30 * i, i), .max_tokens = 60},
                                    nullptr, [&, i](auto request_id, const RequestOutcome& o) {
                                      EXPECT_TRUE(o.status.ok()) << o.status;
                                      answers[i] = o.tokens;
                                      n_preemptions += o.n_preemptions;
                                      if (i == 0) session = engine.TakeSession(request_id);
                                    });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_GT(n_preemptions, 0);
  }
  const ScratchFolder folder;
  const SequenceIdentity identity = {"none", "a model"};
  const std::string path = folder / "session";
  EXPECT_TRUE(SaveSession(session, identity, path).ok());
  session = {};
  auto loaded = LoadSession(path, {identity, &model->layout(), 512}, kSmallVocabulary, &pool);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return answers;
  Engine engine({model}, &pool, {});
  const auto id = engine.Submit(
      {.max_tokens = 20}, nullptr, [&](auto, const RequestOutcome& o) { answers[4] = o.tokens; },
      *std::move(loaded));
  EXPECT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  return answers;
}

TEST(GuardedEngine, RequestsThatOutgrowTheBudgetAnswerAsOnAMachineThatDoesNotBite) {
  ThreadPool threads(2);
  const auto biting = MakeCaseModel({"None", "none"}, std::make_shared<BitingMachine>(&threads));
  const auto plain = MakeCaseModel({"None", "none"}, &threads, Isa::kScalar);
  const int64_t budget = 2 * SequenceBytes(plain->layout(), 250);
  const auto answers = Answers(biting.get(), budget);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answers[i].size(), 60u);
  EXPECT_EQ(answers[4].size(), 20u);
  EXPECT_EQ(answers, Answers(plain.get(), budget));
}

}  // namespace
}  // namespace kvlathe
