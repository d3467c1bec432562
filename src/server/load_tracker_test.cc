#include "server/load_tracker.h"

#include <gtest/gtest.h>

namespace kvlathe::server {
namespace {

TEST(LoadTrackerTest, CountsAPromptUntilItsFirstTokenAndTheAnswerUntilTheEnd) {
  LoadTracker load;
  load.Begin("a", 100, 50);
  load.Begin("b", 10, 5);
  EXPECT_EQ(load.load().n_prompt_tokens, 110);
  EXPECT_EQ(load.load().n_output_tokens, 55);
  load.FirstToken("a");
  load.FirstToken("a");
  EXPECT_EQ(load.load().n_prompt_tokens, 10);
  load.End("a", 20);
  load.End("a", 20);
  load.End("unknown", 20);
  EXPECT_EQ(load.load().total(), 15);
  load.End("b", 5);
  EXPECT_EQ(load.load().total(), 0);
}

TEST(LoadTrackerTest, ExpectsAnswersAsLongAsThoseThatEnded) {
  LoadTracker load;
  load.Begin("a", 1, 1000);
  load.End("a", 20);
  load.Begin("b", 1, 1000);
  load.Begin("c", 1, 7);
  EXPECT_EQ(load.load().n_output_tokens, 27);
}

TEST(LoadTrackerTest, PercentFallsFromAHundredToOne) {
  LoadTracker load;
  EXPECT_EQ(load.FreePercent(1000), 100);
  load.Begin("a", 200, 50);
  EXPECT_EQ(load.FreePercent(1000), 75);
  load.Begin("b", 5000, 50);
  EXPECT_EQ(load.FreePercent(1000), 1);
}

}  // namespace
}  // namespace kvlathe::server
