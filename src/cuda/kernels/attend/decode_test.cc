// Attention of steps that decode, on a GPU, against plain attention in double.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/kernels/attend/decode_case.h"

namespace kvlathe::cuda {
namespace {

constexpr double kMostDeviations = 6;

TEST(DecodeTest, ReadsPlainRows) {
  for (const int rank : {16, 48, 64, 128, 256}) {
    for (const int n : {1, 63, 64, 65, 300}) {
      const int rank_v = rank == 48 ? 80 : rank;
      const AttendProblem problem(
          {.rank_k = rank, .rank_v = rank_v, .gqa_group = 3, .kv_end = n, .first_visible = n},
          DType::kBf16, 7);
      EXPECT_LT(WorstDeviation(CaseOf(problem)), kMostDeviations) << problem.shape.Describe();
    }
  }
}

}  // namespace
}  // namespace kvlathe::cuda
