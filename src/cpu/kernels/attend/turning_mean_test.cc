// What the mean of turned keys adds to scores, with every kernel set of this machine against
// AttendRef.
#include <gtest/gtest.h>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/testing/attend_problem.h"

namespace kvlathe {
namespace {

TEST(TurningMean, AddsToTheScores) {
  for (const int group : {1, 2, 3, 5, 9, 70}) {
    for (const int n_pairs : {8, 16, 32}) {
      CheckAllSets({.rank_k = 48,
                    .rank_v = 80,
                    .n_tokens = 3,
                    .gqa_group = group,
                    .kv_begin = 64,
                    .kv_end = 300,
                    .first_visible = 297,
                    .n_pairs = n_pairs},
                   group);
    }
  }
}

// Panels of rows, and blocks before the first that an item sees.
TEST(TurningMean, WeightsAreThoseOfTheRowAndTheBlock) {
  CheckAllSets({.rank_k = 32,
                .rank_v = 16,
                .n_tokens = 90,
                .gqa_group = 3,
                .kv_begin = 64,
                .kv_end = 390,
                .first_visible = 301,
                .window = 150,
                .n_pairs = 8},
               1);
}

}  // namespace
}  // namespace kvlathe
