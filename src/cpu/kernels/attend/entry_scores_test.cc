// Every kernel set of this machine against column sums of a softmax in double.
#include "cpu/kernels/attend/entry_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"

namespace kvlathe {
namespace {

struct Problem {
  Problem(int n_tokens, int group, int first_visible, int entries, uint64_t seed)
      : gqa_group(group),
        n_rows(n_tokens * group),
        n_entries(entries),
        visible_to_first(first_visible),
        stride((entries + 63) / 64 * 64),
        scores(n_rows * stride),
        row_max(n_rows),
        row_sum(n_rows),
        memory(stride / 64 * EntryTable::BlockBytes(true)) {
    Random random(seed);
    for (float& x : scores) x = static_cast<float>(8 * random.Normal());
    for (int row = 0; row < n_rows; ++row) {
      // As if a sink had a share of the row.
      row_max[row] = 2.5f;
      row_sum[row] = 3.0f;
      for (int e = 0; e < Visible(row); ++e) {
        row_sum[row] += std::exp(kScale * scores[row * stride + e] - row_max[row]);
      }
    }
    int position = 7;
    for (int e = 0; e < n_entries; ++e) {
      Table().position(e) = position;
      position += 1 + static_cast<int>(random.Below(3));
    }
  }

  static constexpr float kScale = 0.3f;
  int Visible(int row) const {
    return std::clamp(visible_to_first + row / gqa_group, 0, n_entries);
  }
  EntryTable Table() { return EntryTable(memory.data(), true); }

  // Rows of tokens [begin, end).
  void Add(const EntryScoreKernels& kernels, int begin, int end, const ScoreNoise* noise,
           bool takes_largest = false) {
    std::vector<float> copy(scores.begin() + begin * gqa_group * stride,
                            scores.begin() + end * gqa_group * stride);
    ScoreNoise moved = noise == nullptr ? ScoreNoise() : *noise;
    moved.first_position += begin;
    moved.temperature += static_cast<float>(begin) * moved.temperature_step;
    kernels.add({.scores = copy.data(),
                 .stride = stride,
                 .n_rows = (end - begin) * gqa_group,
                 .gqa_group = gqa_group,
                 .first_visible = visible_to_first + begin,
                 .n_entries = n_entries,
                 .sm_scale = kScale,
                 .row_max = row_max.data() + begin * gqa_group,
                 .row_sum = row_sum.data() + begin * gqa_group,
                 .noise = noise == nullptr ? nullptr : &moved,
                 .takes_largest = takes_largest,
                 .table = Table()});
  }

  std::vector<int64_t> Sums() {
    std::vector<int64_t> sums;
    for (int e = 0; e < n_entries; ++e) sums.push_back(Table().sum(e));
    return sums;
  }

  std::vector<double> WantProbabilities() const {
    std::vector<double> sums(n_entries);
    for (int row = 0; row < n_rows; ++row) {
      for (int e = 0; e < Visible(row); ++e) {
        const double score = double{kScale} * scores[row * stride + e];
        sums[e] += std::exp(score - row_max[row]) / row_sum[row];
      }
    }
    return sums;
  }

  std::vector<double> WantLargest() const {
    std::vector<double> largest(n_entries);
    for (int row = 0; row < n_rows; ++row) {
      for (int e = 0; e < Visible(row); ++e) {
        const double score = double{kScale} * scores[row * stride + e];
        largest[e] = std::max(largest[e], std::exp(score - row_max[row]) / row_sum[row]);
      }
    }
    return largest;
  }

  std::vector<double> WantNoisy(const ScoreNoise& noise) {
    std::vector<double> sums(n_entries);
    for (int row = 0; row < n_rows; ++row) {
      const int token = row / gqa_group, head = noise.first_head + row % gqa_group;
      const double temperature = std::min<double>(
          noise.max_temperature, noise.temperature + double{noise.temperature_step} * token);
      const uint64_t place =
          (static_cast<uint64_t>(head) << 32) + static_cast<uint64_t>(noise.first_position + token);
      const uint32_t key = static_cast<uint32_t>(MixBits(noise.key ^ MixBits(place)));
      std::vector<double> weights;
      double sum = 0;
      for (int e = 0; e < Visible(row); ++e) {
        uint32_t x = key + static_cast<uint32_t>(Table().position(e)) * 0x9e3779b1u;
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        x ^= x >> 16;
        const double u = (2.0 * (x >> 9) + 1) / (1 << 24);
        const double gumbel = -std::log(-std::log(u));
        weights.push_back(
            std::exp((double{kScale} * scores[row * stride + e] + gumbel) / temperature));
        sum += weights.back();
      }
      for (int e = 0; e < Visible(row); ++e) sums[e] += weights[e] / sum;
    }
    return sums;
  }

  int gqa_group, n_rows, n_entries, visible_to_first;
  int64_t stride;
  std::vector<float> scores, row_max, row_sum;
  std::vector<std::byte> memory;
};

void ExpectNear(const std::vector<int64_t>& got, const std::vector<double>& want, int n_rows,
                const std::string& what) {
  double total = 0;
  for (size_t e = 0; e < want.size(); ++e) {
    ASSERT_NEAR(got[e] * kScoreUnit, want[e], 4e-6 * want[e] + 0.6 * kScoreUnit * n_rows)
        << what << " entry " << e;
    total += want[e];
  }
  ASSERT_GT(total, 0);
}

struct Shape {
  int n_tokens, group, first_visible, n_entries;
};
constexpr Shape kShapes[] = {{1, 4, 300, 300}, {1, 1, 17, 17},  {150, 1, 1, 150},
                             {40, 5, 60, 99},  {70, 3, -5, 64}, {3, 71, 65, 67}};

TEST(EntryScores, AreColumnSumsOfTheSoftmax) {
  for (Isa isa : AvailableIsas()) {
    for (const Shape& s : kShapes) {
      Problem problem(s.n_tokens, s.group, s.first_visible, s.n_entries, 1);
      problem.Add(GetEntryScoreKernels(isa), 0, s.n_tokens, nullptr);
      ExpectNear(problem.Sums(), problem.WantProbabilities(), problem.n_rows,
                 std::string(IsaName(isa)));
    }
  }
}

TEST(EntryScores, AreTheLargestOfEachColumn) {
  for (Isa isa : AvailableIsas()) {
    for (const Shape& s : kShapes) {
      Problem problem(s.n_tokens, s.group, s.first_visible, s.n_entries, 6);
      problem.Add(GetEntryScoreKernels(isa), 0, s.n_tokens, nullptr, true);
      ExpectNear(problem.Sums(), problem.WantLargest(), 1, std::string(IsaName(isa)));
      // Rows that come again raise nothing; what was there before stays where it is larger.
      const std::vector<int64_t> once = problem.Sums();
      problem.Table().sum(0) = int64_t{1} << 31;
      problem.Add(GetEntryScoreKernels(isa), 0, s.n_tokens, nullptr, true);
      std::vector<int64_t> twice = problem.Sums();
      EXPECT_EQ(twice[0], int64_t{1} << 31);
      twice[0] = once[0];
      EXPECT_EQ(once, twice) << IsaName(isa);
    }
  }
}

TEST(EntryScores, TakeGumbelNoiseByPosition) {
  const ScoreNoise noise = {.key = 99,
                            .first_head = 6,
                            .first_position = 1000,
                            .temperature = 1.25f,
                            .temperature_step = 0.03125f,
                            .max_temperature = 2};
  for (Isa isa : AvailableIsas()) {
    for (const Shape& s : kShapes) {
      Problem problem(s.n_tokens, s.group, s.first_visible, s.n_entries, 2);
      problem.Add(GetEntryScoreKernels(isa), 0, s.n_tokens, &noise);
      ExpectNear(problem.Sums(), problem.WantNoisy(noise), problem.n_rows,
                 std::string(IsaName(isa)));
    }
  }
}

TEST(EntryScores, StepsMakeNoDifference) {
  const ScoreNoise noise = {.key = 3, .temperature = 1, .max_temperature = 1};
  for (Isa isa : AvailableIsas()) {
    for (const ScoreNoise* used : {static_cast<const ScoreNoise*>(nullptr), &noise}) {
      Problem whole(150, 2, 30, 179, 3), cut(150, 2, 30, 179, 3);
      whole.Add(GetEntryScoreKernels(isa), 0, 150, used);
      for (const auto& [begin, end] : {std::pair(100, 150), {0, 1}, {1, 100}}) {
        cut.Add(GetEntryScoreKernels(isa), begin, end, used);
      }
      EXPECT_EQ(whole.Sums(), cut.Sums()) << IsaName(isa);
    }
    Problem whole(150, 2, 30, 179, 3), cut(150, 2, 30, 179, 3);
    whole.Add(GetEntryScoreKernels(isa), 0, 150, nullptr, true);
    for (const auto& [begin, end] : {std::pair(100, 150), {0, 1}, {1, 100}}) {
      cut.Add(GetEntryScoreKernels(isa), begin, end, nullptr, true);
    }
    EXPECT_EQ(whole.Sums(), cut.Sums()) << IsaName(isa);
  }
}

TEST(EntryScores, NaNCountsAtMostAsOne) {
  for (Isa isa : AvailableIsas()) {
    Problem problem(20, 1, 64, 64, 4);
    for (int row = 0; row < 20; ++row) problem.row_sum[row] = std::nanf("");
    problem.Add(GetEntryScoreKernels(isa), 0, 20, nullptr);
    for (int64_t sum : problem.Sums()) {
      ASSERT_LE(sum * kScoreUnit, 20.0) << IsaName(isa);
      ASSERT_GE(sum, 0) << IsaName(isa);
    }
  }
}

// All of them write the same block.
TEST(EntryScores, WorkersLoseNothing) {
  constexpr int kTokens = 20000;
  ThreadPool pool(4);
  for (Isa isa : AvailableIsas()) {
    Problem alone(kTokens, 1, 64, 64, 5), shared(kTokens, 1, 64, 64, 5);
    alone.Add(GetEntryScoreKernels(isa), 0, kTokens, nullptr);
    std::atomic<int> next{0};
    pool.Run([&](int) {
      for (int token; (token = next++) < kTokens;) {
        shared.Add(GetEntryScoreKernels(isa), token, token + 1, nullptr);
      }
    });
    EXPECT_EQ(alone.Sums(), shared.Sums()) << IsaName(isa);
  }
}

}  // namespace
}  // namespace kvlathe
