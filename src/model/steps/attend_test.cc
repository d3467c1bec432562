#include "model/steps/attend.h"

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

using AttendStepTest = StepTest;

TEST_F(AttendStepTest, AJobForEachKvHeadSeesTheSequenceUpToItsTokens) {
  layout.n_sink = 2;
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(10).ok());
  Begin(&cache, 3);
  ASSERT_TRUE(AttendStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.jobs.size(), 2u);
  const HeadJob& job = backend.jobs[1];
  EXPECT_EQ(job.n_tokens, 3);
  EXPECT_EQ(job.gqa_group, 2);
  EXPECT_EQ(job.n_entries, 11);     // behind two sinks
  EXPECT_EQ(job.first_visible, 9);  // the first token sees itself and what was there
  EXPECT_EQ(job.sinks.n, 2);
  EXPECT_EQ(job.sinks.first_visible, 11);
  EXPECT_EQ(job.window, 0);
  EXPECT_EQ(job.q, layer.rows.WholeQueries(&activations, 1).first);
  // Four query heads of kHeadDim a token; the second KV head's two stand last.
  EXPECT_EQ(job.out_stride, 4 * kHeadDim);
  EXPECT_EQ(job.out, activations.attended.place() + 2 * kHeadDim * 4);
  EXPECT_FALSE(job.is_scored());
}

TEST_F(AttendStepTest, EntriesAreCountedFromTheFirstBlockThatTheWindowReaches) {
  layer.window = 70;
  layout.windows = {70};
  SequenceCache cache(&layout, &pool);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cache.Extend(kBlockSize).ok());
  Begin(&cache, 1);
  ASSERT_TRUE(AttendStep(&layer).Run(&state).ok());
  // Position 256 sees those from 187 on, which are in block 2 of 5.
  EXPECT_EQ(backend.jobs[0].n_entries, 4 * kBlockSize + 1 - 2 * kBlockSize);
  EXPECT_EQ(backend.jobs[0].first_visible, backend.jobs[0].n_entries);
  EXPECT_EQ(backend.jobs[0].window, 70);
}

TEST_F(AttendStepTest, SinksThatFellOutOfTheWindowAreNotRead) {
  layer.window = 70;
  layout.windows = {70};
  layout.n_sink = 2;
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(70).ok());
  Begin(&cache, 3);  // of which the first sees position 1
  ASSERT_TRUE(AttendStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.jobs[0].sinks.n, 2);
  EXPECT_EQ(backend.jobs[0].sinks.window, 70);
  Begin(&cache, 1);
  ASSERT_TRUE(AttendStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.jobs[0].sinks.n, 0);
  EXPECT_TRUE(backend.jobs[0].sinks.k.is_null());
}

TEST_F(AttendStepTest, RowsOfThePromptsTailVote) {
  layout.retention = RetentionPlan{.votes = RetentionPlan::Votes::kPromptTail,
                                   .keep = 0.5,
                                   .n_recent = 4,
                                   .prunes_runs = false,
                                   .prunes_decode = false};
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(10);
  Begin(&cache, 8);
  ASSERT_TRUE(AttendStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.jobs[0].first_scored, 6);
  EXPECT_TRUE(backend.jobs[0].is_scored());
  EXPECT_EQ(backend.jobs[0].noise, nullptr);
}

}  // namespace
}  // namespace kvlathe
