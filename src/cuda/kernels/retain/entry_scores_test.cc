// Votes on a GPU against those of the CPU.
#include "cuda/kernels/retain/entry_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/entry_scores.h"
#include "cuda/testing/device_array.h"

namespace kvlathe::cuda {
namespace {

struct ScoreShape {
  int n_tokens, gqa_group, first_visible, n_entries;
};

class EntryScoresTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr float kScale = 0.3f;

  // Adds the votes of drawn scores by both, and compares the tables.
  void Compare(const ScoreShape& shape) {
    Random random(shape.n_entries);
    const int n_rows = shape.n_tokens * shape.gqa_group;
    const int64_t stride = (shape.n_entries + 63) / 64 * 64 + 16;
    std::vector<float> scores(n_rows * stride), row_max(n_rows, 2.5f), row_sum(n_rows);
    for (float& x : scores) x = static_cast<float>(8 * random.Normal());
    for (int row = 0; row < n_rows; ++row) {
      row_sum[row] = 3;  // as if a sink had a share
      const int n_visible = std::min(shape.n_entries, shape.first_visible + row / shape.gqa_group);
      for (int e = 0; e < n_visible; ++e) {
        row_sum[row] += std::exp(kScale * scores[row * stride + e] - row_max[row]);
      }
    }
    std::vector<std::byte> table((shape.n_entries + 63) / 64 * EntryTable::BlockBytes(true));
    for (int e = 0; e < shape.n_entries; ++e) {
      EntryTable(table.data(), true).position(e) = 7 + 2 * e;
      EntryTable(table.data(), true).sum(e) = e;
    }
    const ScoreNoise noise = {.key = 99,
                              .first_head = 2,
                              .first_position = 50,
                              .temperature = 1.5f,
                              .temperature_step = 0.125f,
                              .max_temperature = 1.7f};
    const DeviceArray<float> on_device(scores), maxima(row_max), sums(row_sum);
    const DeviceArray<std::byte> device_table(table);
    const DeviceArray<EntryScoreItem> items(
        std::vector<EntryScoreItem>{{.scores = on_device.data(),
                                     .stride = stride,
                                     .n_rows = n_rows,
                                     .gqa_group = shape.gqa_group,
                                     .first_visible = shape.first_visible,
                                     .n_entries = shape.n_entries,
                                     .sm_scale = kScale,
                                     .row_max = maxima.data(),
                                     .row_sum = sums.data(),
                                     .has_noise = GetParam(),
                                     .noise = noise,
                                     .table = device_table.data()}});
    AddEntryScores(nullptr, items.data(), 1, n_rows, shape.n_entries);
    const std::vector<std::byte> got = device_table.Download();
    GetEntryScoreKernels(Isa::kScalar)
        .add({.scores = scores.data(),
              .stride = stride,
              .n_rows = n_rows,
              .gqa_group = shape.gqa_group,
              .first_visible = shape.first_visible,
              .n_entries = shape.n_entries,
              .sm_scale = kScale,
              .row_max = row_max.data(),
              .row_sum = row_sum.data(),
              .noise = GetParam() ? &noise : nullptr,
              .table = EntryTable(table.data(), true)});
    std::vector<std::byte> copy = got;
    int64_t all = 0;
    for (int e = 0; e < shape.n_entries; ++e) {
      const int64_t want = EntryTable(table.data(), true).sum(e);
      // Exponentials and logarithms differ in their last places, by a share of the vote.
      EXPECT_NEAR(static_cast<double>(EntryTable(copy.data(), true).sum(e)),
                  static_cast<double>(want), 1e-4 * static_cast<double>(want) + n_rows)
          << e;
      EXPECT_EQ(EntryTable(copy.data(), true).position(e), 7 + 2 * e);
      all += want;
    }
    EXPECT_GT(all, 1 << 28);
  }
};

TEST_P(EntryScoresTest, AreThoseOfTheCpu) {
  Compare({.n_tokens = 1, .gqa_group = 3, .first_visible = 200, .n_entries = 200});
  Compare({.n_tokens = 5, .gqa_group = 2, .first_visible = 0, .n_entries = 4});
  Compare({.n_tokens = 4, .gqa_group = 1, .first_visible = 126, .n_entries = 129});
}

INSTANTIATE_TEST_SUITE_P(Noise, EntryScoresTest, ::testing::Bool());

}  // namespace
}  // namespace kvlathe::cuda
