// Experts on a GPU, against the CPU.
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cuda/rows/row_verbs_fixture.h"

namespace kvlathe {
namespace {

using ExpertVerbsTest = RowVerbsTest;
using Score = RouteRule::Score;

// Experts of rows, and behind them weights and gates.
struct RouterCase {
  RouteRule rule;
  int n_experts = 32;
  bool has_gate_row = false, has_bias = false, has_choice_bias = false;
};

TEST_F(ExpertVerbsTest, RowsGoWhereTheCpuSendsThem) {
  const RouterCase cases[] = {
      {.rule = {.n_used = 2}, .n_experts = 8},
      {.rule = {.n_used = 8, .normalises = true}, .n_experts = 128},
      {.rule = {.n_used = 4}, .n_experts = 60, .has_gate_row = true},
      {.rule = {.score = Score::kSoftmaxOfChosen, .n_used = 4}, .has_bias = true},
      {.rule = {.score = Score::kSigmoid,
                .n_used = 8,
                .normalises = true,
                .min_sum = 1e-20f,
                .adds_min_sum = true,
                .scale = 2.5f,
                .n_groups = 8,
                .n_used_groups = 4},
       .n_experts = 256,
       .has_choice_bias = true},
      {.rule = {.score = Score::kSigmoid,
                .n_used = 3,
                .normalises = true,
                .min_sum = 1e-9f,
                .n_groups = 4,
                .n_used_groups = 1,
                .groups_sum_two = false},
       .n_experts = 20,
       .has_gate_row = true,
       .has_bias = true,
       .has_choice_bias = true},
      {.rule = {.score = Score::kSparseMixer, .n_used = 2, .mixer_jitter = 0.3f}, .n_experts = 16},
      {.rule = {.n_used = 1}, .n_experts = 1},
  };
  for (const RouterCase& c : cases) {
    for (const int64_t n_rows : {1, 7, 70}) {
      const auto body = [&](const Side& side, auto& verbs) {
        const int64_t n_in = 40, n_out = c.n_experts + (c.has_gate_row ? 1 : 0);
        const Weight router = side.Matrix(Drawn(n_out * n_in, 1, 0.2f), n_out, WeightType::kF32);
        const MachineBuffer x = side.Put(Drawn(n_rows * n_in, 2));
        const MachineBuffer bias = side.Put(Drawn(c.n_experts, 3));
        const MachineBuffer choice_bias = side.Put(Drawn(c.n_experts, 4, 0.2f));
        const RoutedRows routed =
            verbs.Route({.rule = c.rule,
                         .n_experts = c.n_experts,
                         .n_rows = n_rows,
                         .x = x.place(),
                         .router = router.id(),
                         .has_gate_row = c.has_gate_row,
                         .bias = c.has_bias ? bias.place() : ObjectPlace(),
                         .choice_bias = c.has_choice_bias ? choice_bias.place() : ObjectPlace()});
        std::vector<float> all(routed.experts.begin(), routed.experts.end());
        all.insert(all.end(), routed.weights.begin(), routed.weights.end());
        all.insert(all.end(), routed.gates.begin(), routed.gates.end());
        return all;
      };
      ExpectLikeCpu(body, 1e-5);
    }
  }
}

// Equal scores, and logits that are no numbers.
TEST_F(ExpertVerbsTest, OfEqualScoresTheLowerNumberIsTaken) {
  for (const float of_third : {1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    const auto body = [&](const Side& side, auto& verbs) {
      const Weight router = side.Matrix({0, 1, of_third, 1, 2, 0, 1, 0}, 8, WeightType::kF32);
      const MachineBuffer x = side.Put(std::vector<float>{1, 2});
      const RoutedRows routed =
          verbs.Route({.rule = {.score = Score::kSoftmaxOfChosen, .n_used = 8},
                       .n_experts = 8,
                       .n_rows = 2,
                       .x = x.place(),
                       .router = router.id()});
      return std::vector<float>(routed.experts.begin(), routed.experts.end());
    };
    ExpectLikeCpu(body, 0);
  }
}

TEST_F(ExpertVerbsTest, RowsAreGathered) {
  const std::vector<int64_t> from = {4, 0, 0, 8, 3, 4, 7};
  for (const int64_t row_bytes : {64, 36, 10}) {
    const auto body = [&](const Side& side, auto& verbs) {
      std::vector<uint8_t> bytes(9 * row_bytes);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
      const MachineBuffer x = side.Put(bytes);
      std::vector<uint8_t> taken(std::ssize(from) * row_bytes);
      const MachineBuffer to = side.Put(taken);
      verbs.GatherRows({.x = x.place(), .to = to.place(), .row_bytes = row_bytes, .from = from});
      side.memory.Download(to.place(), std::as_writable_bytes(std::span(taken)));
      return std::vector<float>(taken.begin(), taken.end());
    };
    ExpectLikeCpu(body, 0);
  }
}

// Experts of one row, of few and of many, the first two of which read the same row of x.
TEST_F(ExpertVerbsTest, ProductsOfExperts) {
  constexpr auto kBf16 = DType::kBf16, kF32 = DType::kF32;
  for (const auto& [weights, type] :
       {std::pair{WeightType::kBf16, kBf16}, std::pair{WeightType::kF32, kF32},
        std::pair{WeightType::kQ4_0, kBf16}, std::pair{WeightType::kQ4_0, kF32}}) {
    for (const bool deterministic : {false, true}) {
      verbs_.set_deterministic(deterministic);
      const int64_t n_in = 96, n_out = 50, n_rows = 1 + 1 + 3 + 20 + 70;
      const auto body = [&](const Side& side, auto& verbs) {
        std::vector<Weight> experts;
        for (int e = 0; e < 5; ++e) {
          experts.push_back(side.Matrix(Drawn(n_out * n_in, 1 + e, 0.1f), n_out, weights));
        }
        const MachineBuffer x = side.Put(Drawn(n_rows * n_in, 6), type);
        const MachineBuffer biases = side.Put(Drawn(5 * n_out, 7));
        const MachineBuffer y = side.Put(Drawn(n_rows * n_out, 8));
        std::vector<ExpertProductsPlan::Item> items;
        int64_t row = 0;
        for (const int64_t n : {1, 1, 3, 20, 70}) {
          const auto e = std::ssize(items);
          items.push_back(
              {.w = experts[4 - e].id(),
               .bias = e == 2 ? ObjectPlace() : biases.place() + e * n_out * int64_t{sizeof(float)},
               .first_x = e < 2 ? 0 : row,
               .first_y = row,
               .n_rows = n});
          row += n;
        }
        verbs.ProjectExperts({.items = items,
                              .x = x.place(),
                              .n_x_rows = n_rows,
                              .x_type = type,
                              .y = y.place(),
                              .n_in = n_in,
                              .n_out = n_out});
        return side.Get(y, n_rows * n_out);
      };
      const bool rounds_weights = HasBlocks(weights) && type == kBf16;
      ExpectLikeCpu(body, rounds_weights ? kBf16Bound : kF32Bound);
    }
  }
}

TEST_F(ExpertVerbsTest, WeightedRowsAreSummedUp) {
  const std::vector<int64_t> rows = {5, 2, 0, 1, 3, 3, 4, 0, 5, 1, 1, 2};
  for (const bool accumulate : {false, true}) {
    for (const int64_t n_dims : {3, 200}) {
      const auto body = [&](const Side& side, auto& verbs) {
        const MachineBuffer x = side.Put(Drawn(6 * n_dims, 1)), y = side.Put(Drawn(4 * n_dims, 2));
        const std::vector<float> weights = Drawn(12, 3);
        verbs.AddWeighted({.x = x.place(),
                           .n_x_rows = 6,
                           .rows = rows,
                           .weights = weights,
                           .n_rows = 4,
                           .n_each = 3,
                           .n_dims = n_dims,
                           .y = y.place(),
                           .accumulate = accumulate});
        return side.Get(y, 4 * n_dims);
      };
      ExpectLikeCpu(body, 1e-6);
    }
  }
}

}  // namespace
}  // namespace kvlathe
