#include "model/steps/seal.h"

#include <gmock/gmock.h>

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

class SealStepTest : public StepTest {
 protected:
  SealStepTest() {
    layout.seal = SealPlan{
        .format = {.codec = UniformCodec{}}, .prompt_run = kBlockSize, .buffer = kBlockSize};
    bad.set_n_prompt(kBlockSize);
    good.set_n_prompt(kBlockSize);
  }
  // A step of both sequences in which each ends a run.
  void BeginBoth() {
    Begin(&bad, kBlockSize);
    ASSERT_TRUE(good.Extend(kBlockSize).ok());
    steps.push_back({.cache = &good, .token_ids = ids});
    sequences.Begin(steps);
    ASSERT_TRUE(bad.must_seal() && good.must_seal());
  }

  SequenceCache bad{&layout, &pool}, good{&layout, &pool};
};

TEST_F(SealStepTest, RunsOfAllSequencesAreSealedTogether) {
  BeginBoth();
  ASSERT_TRUE(SealStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.n_seals, 1);
  EXPECT_TRUE(sequences.FirstFailure().ok());
  for (const SequenceCache* cache : {&bad, &good}) {
    EXPECT_FALSE(cache->must_seal());
    ASSERT_EQ(cache->head(0, 1).runs().size(), 1u);
    EXPECT_EQ(cache->head(0, 1).runs()[0].n_blocks, 1);
  }
}

TEST_F(SealStepTest, OneWhoseRowsCannotBeSealedFailsAloneAndGivesItsObjectsBack) {
  BeginBoth();
  const int64_t n_bytes = bad.bytes().total();
  backend.unsealable = {bad.head(0, 0).blocks()[0]};
  ASSERT_TRUE(SealStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.n_seals, 3);  // together, then each alone
  EXPECT_EQ(sequences.failures()[0].code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(sequences.failures()[0]), testing::HasSubstr("layer 0: "));
  EXPECT_TRUE(sequences.failures()[1].ok());
  EXPECT_THAT(sequences.sealing(), testing::ElementsAre(&good));
  EXPECT_TRUE(bad.head(0, 0).runs().empty());
  EXPECT_EQ(bad.bytes().total(), n_bytes);
  EXPECT_EQ(good.head(0, 0).runs().size(), 1u);
}

}  // namespace
}  // namespace kvlathe
