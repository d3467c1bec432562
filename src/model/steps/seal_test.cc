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
  EXPECT_TRUE(sequences.failures().front().ok());
  for (const SequenceCache* cache : {&bad, &good}) {
    EXPECT_FALSE(cache->must_seal());
    ASSERT_EQ(cache->head(0, 1).runs().size(), 1u);
    EXPECT_EQ(cache->head(0, 1).runs()[0].n_blocks, 1);
  }
}

TEST_F(SealStepTest, PlansKnowSequencesByTheirNumbersInTheStep) {
  BeginBoth();
  ASSERT_TRUE(SealStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.seals.size(), 2u);  // a run of each sequence, of all its heads
  EXPECT_EQ(backend.seals[0].sequence, 0);
  EXPECT_EQ(backend.seals[1].sequence, 1);
}

// What the machine tells of a sequence concerns it alone.
TEST_F(SealStepTest, OneWhoseRowsCouldNotBeSealedFailsAlone) {
  BeginBoth();
  sequences.Learn({.failures = {{0, 3, Error(StatusCode::kDataLoss, "rows are not finite")},
                                {0, 4, Error(StatusCode::kResourceExhausted, "no memory")}}});
  EXPECT_EQ(sequences.failures()[0].code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(sequences.failures()[0]), testing::HasSubstr("layer 3: "));
  EXPECT_TRUE(sequences.failures()[1].ok());
  EXPECT_THAT(sequences.sealing(), testing::ElementsAre(&good));
  EXPECT_FALSE(sequences.AllFailed());
}

}  // namespace
}  // namespace kvlathe
