#include "lived_sequence.h"

#include <gtest/gtest.h>

#include <utility>

#include "engine/engine.h"
#include "engine/session.h"
#include "io/scratch_folder.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_file.h"
#include "kv/spec/spec.h"
#include "model/small_config.h"

namespace kvlathe::testing {
namespace {

constexpr int64_t kBudgetBytes = int64_t{64} << 20;

}  // namespace

std::vector<std::string> LiveThrough(const SequenceCase& of, std::shared_ptr<Machine> machine,
                                     int n_prompt) {
  const ScratchFolder folder;
  std::vector<std::string> logits;
  const std::unique_ptr<Model> model = MakeCaseModel(of, std::move(machine));
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
  const SequenceIdentity identity = {Spec::Parse(of.spec)->ToString(), "a model"};
  const std::string path = folder / "sequence";
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

std::vector<std::vector<int32_t>> AnswersThatOutgrow(Model* model, int64_t budget) {
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

}  // namespace kvlathe::testing
