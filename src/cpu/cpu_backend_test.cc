#include "cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/memory/host_places.h"
#include "format/open_entry.h"

namespace kvlathe {
namespace {

constexpr int kDims = 32;

std::vector<float> RandomNumbers(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(random.Normal());
  return x;
}

class CpuBackendTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  CpuDevice memory_;
  HostPlaces at_{&memory_};  // rows of the test, where they are
  CpuResidents residents_{&memory_};
  CpuBackend backend_{&pool_, Isa::kScalar, &memory_, &residents_};
};

TEST_F(CpuBackendTest, GroupsOfARowAreNormalisedApartAndTheRestIsLeftAlone) {
  constexpr int kRows = 5, kGroups = 2, kStride = 3 * kDims;
  const std::vector<float> before = RandomNumbers(kRows * kStride, 1);
  const std::vector<float> weight = RandomNumbers(kDims, 2);
  std::vector<float> x = before;
  const NormPlan plan = {.x = at_(x.data()),
                         .n_rows = kRows,
                         .n_groups = kGroups,
                         .n_dims = kDims,
                         .stride = kStride,
                         .weight = at_(weight.data()),
                         .eps = 1e-5f,
                         .out = at_(x.data())};
  backend_.Normalise({&plan, 1});
  for (int i = 0; i < kRows * kStride; ++i) {
    const int group = i % kStride / kDims, first = i / kDims * kDims;
    double squares = 0;
    for (int j = 0; j < kDims; ++j) squares += double{before[first + j]} * before[first + j];
    const double scale = 1 / std::sqrt(squares / kDims + 1e-5);
    const double want = group < kGroups ? before[i] * scale * weight[i % kDims] : before[i];
    ASSERT_NEAR(x[i], want, 1e-5) << i;
  }
}

// What a plan makes of rows, in double.
std::vector<double> NormalisedRows(const NormPlan& plan, const std::vector<float>& x,
                                   const std::vector<float>& weight,
                                   const std::vector<float>& bias) {
  std::vector<double> rows(x.begin(), x.end());
  for (int64_t first = 0; first < std::ssize(x); first += plan.n_dims) {
    const int64_t group = first % plan.stride / plan.n_dims;
    if (group >= plan.n_groups || plan.function == NormFunction::kNone) continue;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < plan.n_dims; ++i) mean += x[first + i] / double(plan.n_dims);
    if (plan.function == NormFunction::kRms) mean = 0;
    for (int64_t i = 0; i < plan.n_dims; ++i) squares += std::pow(x[first + i] - mean, 2);
    const double scale = 1 / std::sqrt(squares / double(plan.n_dims) + plan.eps);
    for (int64_t i = 0; i < plan.n_dims; ++i) {
      const int64_t at = i + (plan.has_group_weights ? group * plan.n_dims : 0);
      rows[first + i] = (x[first + i] - mean) * scale * (weight.empty() ? 1 : weight[at]) +
                        (bias.empty() ? 0 : bias[i]);
    }
  }
  return rows;
}

// Of a head with weights of all heads or its own, of all heads together, with and without what is
// null; where rows are dense and where there is more behind the groups.
TEST_F(CpuBackendTest, NormsOfEveryKindAreWhatTheyAreInDouble) {
  constexpr int kRows = 5, kGroups = 3;
  for (const NormFunction function :
       {NormFunction::kRms, NormFunction::kLayer, NormFunction::kNone}) {
    for (const int n_together : {1, kGroups}) {
      for (const bool has_group_weights : {false, true}) {
        for (const bool is_null : {false, true}) {
          for (const int more : {0, kGroups * kDims}) {
            const int64_t n_dims = kDims * n_together, n_groups = kGroups / n_together;
            const int64_t stride = kGroups * kDims + more;
            std::vector<float> x = RandomNumbers(kRows * stride, 11);
            for (float& value : x) value = 2 * value + 1;
            const std::vector<float> before = x;
            const int64_t n_weights = is_null ? 0 : has_group_weights ? n_groups * n_dims : n_dims;
            const std::vector<float> weight = RandomNumbers(n_weights, 12);
            const bool has_bias = !is_null && function == NormFunction::kLayer;
            const std::vector<float> bias = RandomNumbers(has_bias ? n_dims : 0, 13);
            const NormPlan plan = {.function = function,
                                   .x = at_(x.data()),
                                   .n_rows = kRows,
                                   .n_groups = n_groups,
                                   .n_dims = n_dims,
                                   .stride = stride,
                                   .weight = is_null ? ObjectPlace() : at_(weight.data()),
                                   .has_group_weights = has_group_weights,
                                   .bias = has_bias ? at_(bias.data()) : ObjectPlace(),
                                   .eps = 1e-5f,
                                   .out = at_(x.data())};
            backend_.Normalise({&plan, 1});
            const std::vector<double> want = NormalisedRows(plan, before, weight, bias);
            for (size_t i = 0; i < x.size(); ++i) {
              ASSERT_NEAR(x[i], want[i], 1e-5)
                  << static_cast<int>(function) << ' ' << n_together << ' ' << has_group_weights
                  << ' ' << is_null << ' ' << more << " at " << i;
            }
          }
        }
      }
    }
  }
}

// What is null stays so whatever the width of the plans before.
TEST_F(CpuBackendTest, NullWeightsAreOnesForPlansOfEveryWidth) {
  std::vector<float> narrow = RandomNumbers(kDims, 14), wide = RandomNumbers(4 * kDims, 15);
  const std::vector<float> narrow_before = narrow, wide_before = wide;
  const auto plan_of = [&](std::vector<float>* x) -> NormPlan {
    return {.x = at_(x->data()),
            .n_rows = 1,
            .n_dims = std::ssize(*x),
            .stride = std::ssize(*x),
            .eps = 1e-5f,
            .out = at_(x->data())};
  };
  const NormPlan plans[] = {plan_of(&narrow), plan_of(&wide)};
  backend_.Normalise(plans);
  const std::vector<double> of_narrow = NormalisedRows(plans[0], narrow_before, {}, {});
  const std::vector<double> of_wide = NormalisedRows(plans[1], wide_before, {}, {});
  for (size_t i = 0; i < narrow.size(); ++i) ASSERT_NEAR(narrow[i], of_narrow[i], 1e-5) << i;
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_NEAR(wide[i], of_wide[i], 1e-5) << i;
}

TEST_F(CpuBackendTest, WhatIsNormalisedIsAddedWhereThePlanSaysSo) {
  const std::vector<float> weight(kDims, 2.0f);
  std::vector<float> x(kDims, 3.0f), stream(kDims, 10.0f);
  const NormPlan plan = {.x = at_(x.data()),
                         .n_rows = 1,
                         .n_dims = kDims,
                         .stride = kDims,
                         .weight = at_(weight.data()),
                         .out = at_(x.data()),
                         .added_to = at_(stream.data())};
  backend_.Normalise({&plan, 1});
  for (const float value : stream) EXPECT_NEAR(value, 12, 1e-5);
}

// One KV head of one query head; RoPE of angle pi / 2 in every pair turns (a, b) to (-b, a).
struct QuarterTurn {
  std::vector<TokenPlace> tokens;
  std::vector<float> rows, cos, sin, q, k;
  HeadTurn head;
  RotatePlan plan;

  QuarterTurn(int n_tokens, const HostPlaces& at)
      : rows(RandomNumbers(int64_t{n_tokens} * 2 * kDims, 3)),
        cos(n_tokens * kDims / 2, 0.0f),
        sin(n_tokens * kDims / 2, 1.0f),
        q(n_tokens * kDims),
        k(n_tokens * kDims) {
    for (int t = 0; t < n_tokens; ++t) tokens.push_back({0, t, false});
    head = {.q = at(rows.data()),
            .k = at(rows.data() + kDims),
            .turned_q = at(q.data()),
            .turned_q_stride = kDims,
            .turned_k = {at(k.data()), kDims}};
    plan = {.tokens = tokens,
            .heads = {&head, 1},
            .head_dim = kDims,
            .stride = 2 * kDims,
            .cos = at(cos.data()),
            .sin = at(sin.data()),
            .key_cos = at(cos.data()),
            .key_sin = at(sin.data()),
            .rope_dim = kDims};
  }
  static float Turned(const float* row, int i) {
    return i < kDims / 2 ? -row[i + kDims / 2] : row[i - kDims / 2];
  }
};

TEST_F(CpuBackendTest, KeysBehindTheSinksLoseAMeanAndTurnByAnglesOfTheirOwn) {
  QuarterTurn turn(3, at_);
  const std::vector<float> mean = RandomNumbers(kDims, 4);
  const std::vector<float> ones(turn.cos.size(), 1.0f), zeros(turn.cos.size(), 0.0f);
  turn.head.turning_mean = at_(mean.data());
  turn.plan.first_less_mean = 1;
  turn.plan.key_cos = at_(ones.data());  // keys do not turn
  turn.plan.key_sin = at_(zeros.data());
  backend_.RotateAndMap(turn.plan);
  for (int t = 0; t < 3; ++t) {
    const float *const q = &turn.rows[t * 2 * kDims], *const k = q + kDims;
    for (int i = 0; i < kDims; ++i) {
      EXPECT_EQ(turn.q[t * kDims + i], QuarterTurn::Turned(q, i));
      EXPECT_EQ(turn.k[t * kDims + i], k[i] - (t >= 1 ? mean[i] : 0)) << t;
    }
  }
}

TEST_F(CpuBackendTest, KeysFromBeforeRopeStayAndLoseTheirOffset) {
  QuarterTurn turn(4, at_);
  const std::vector<float> offset = RandomNumbers(kDims, 4);
  turn.head.key_offset = at_(offset.data());
  turn.plan.first_unturned = 1;
  backend_.RotateAndMap(turn.plan);
  for (int t = 0; t < 4; ++t) {
    const float* const q = &turn.rows[t * 2 * kDims];
    const float* const k = q + kDims;
    for (int i = 0; i < kDims; ++i) {
      ASSERT_FLOAT_EQ(turn.q[t * kDims + i], QuarterTurn::Turned(q, i));
      ASSERT_FLOAT_EQ(turn.k[t * kDims + i], t == 0 ? QuarterTurn::Turned(k, i) : k[i] - offset[i]);
    }
  }
}

TEST_F(CpuBackendTest, WhereAllKeysTurnTheOffsetLeavesAfterwards) {
  QuarterTurn turn(3, at_);
  const std::vector<float> offset = RandomNumbers(kDims, 5);
  turn.head.key_offset = at_(offset.data());
  turn.plan.zeroed_channel = 2;
  backend_.RotateAndMap(turn.plan);
  for (int t = 0; t < 3; ++t) {
    const float* const k = &turn.rows[t * 2 * kDims + kDims];
    for (int i = 0; i < kDims; ++i) {
      const float turned = i == 2 ? 0 : QuarterTurn::Turned(k, i);
      ASSERT_FLOAT_EQ(turn.k[t * kDims + i], turned - offset[i]);
    }
    EXPECT_EQ(turn.q[t * kDims + 2], 0);
  }
}

TEST_F(CpuBackendTest, TheChannelOfTheFirstQueryAloneIsZero) {
  QuarterTurn turn(3, at_);
  turn.plan.zeroed_channel = 2;
  turn.plan.zeroes_first_query_only = true;
  backend_.RotateAndMap(turn.plan);
  for (int t = 0; t < 3; ++t) {
    const float *const q = &turn.rows[t * 2 * kDims], *const k = q + kDims;
    for (int i = 0; i < kDims; ++i) {
      EXPECT_EQ(turn.q[t * kDims + i], i == 2 ? 0 : QuarterTurn::Turned(q, i));
      EXPECT_EQ(turn.k[t * kDims + i], QuarterTurn::Turned(k, i));
    }
  }
}

TEST_F(CpuBackendTest, RowsThatMeetWholeKeysAreNotMapped) {
  QuarterTurn turn(3, at_);
  turn.tokens[1].meets_whole_keys = true;
  constexpr int kRank = 16;
  auto map = Weight::Create(&residents_, kRank, kDims, WeightType::kF32);
  ASSERT_TRUE(map.ok());
  const std::vector<float> w = RandomNumbers(kRank * kDims, 6);
  map->WriteRows(0, kRank, DType::kF32, w.data(), kDims);
  std::vector<float> q(3 * kRank, -1.0f), k = q;
  turn.head.query_map = turn.head.key_map = map->id();
  turn.head.turned_q_width = kDims;
  turn.head.mapped_q = at_(q.data());
  turn.head.mapped_q_stride = kRank;
  turn.head.mapped_k = at_(k.data());
  turn.head.joined_k = turn.head.turned_k;
  backend_.RotateAndMap(turn.plan);
  for (int t = 0; t < 3; ++t) {
    for (int r = 0; r < kRank; ++r) {
      double want_q = 0, want_k = 0;
      for (int i = 0; i < kDims; ++i) {
        want_q += double{w[r * kDims + i]} * turn.q[t * kDims + i];
        want_k += double{w[r * kDims + i]} * turn.k[t * kDims + i];
      }
      ASSERT_NEAR(q[t * kRank + r], t == 1 ? -1 : want_q, 1e-4);
      ASSERT_NEAR(k[t * kRank + r], t == 1 ? -1 : want_k, 1e-4);
    }
  }
}

TEST_F(CpuBackendTest, MergedRowsAreMeansOfTheirEntrySoFar) {
  const MergePlan merge = {.every = 2};
  CpuDevice device;
  const int64_t n_bytes = OpenEntry::Bytes(merge, kDims, kDims);
  const ObjectId open = {device.Allocate(n_bytes)};
  device.Fill({open}, std::byte{0}, n_bytes);
  const std::vector<float> before = RandomNumbers(4 * 2 * kDims, 7);
  std::vector<float> rows = before;
  const uint8_t joins[] = {0, 0, 1, 0};
  const float weights[] = {1, 1, 3, 1};
  int n_closed[4];
  const MergeItem item = {.device = &device,
                          .open_entry = open,
                          .rank_v = kDims,
                          .n_tokens = 4,
                          .n_sinks = 1,
                          .joins = joins,
                          .weights = weights,
                          .k = at_(rows.data()),
                          .v = at_(rows.data() + kDims),
                          .first_closed = 0};
  backend_.MergeRows({.items = {&item, 1},
                      .merge = merge,
                      .head_dim = kDims,
                      .k_stride = 2 * kDims,
                      .v_stride = 2 * kDims},
                     n_closed);
  EXPECT_THAT(n_closed, ::testing::ElementsAre(-1, 0, 0, 1));
  for (int i = 0; i < 2 * kDims; ++i) {
    const float first = before[2 * kDims + i], second = before[4 * kDims + i];
    EXPECT_EQ(rows[i], before[i]);
    EXPECT_EQ(rows[2 * kDims + i], first);
    EXPECT_NEAR(rows[4 * kDims + i], (first + 3 * second) / 4, 1e-5);
    EXPECT_EQ(rows[6 * kDims + i], before[6 * kDims + i]);
  }
}

TEST_F(CpuBackendTest, ADecidingChannelIsTakenOutOfTheRows) {
  std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  const std::vector<float> channel =
      backend_.TakeChannel({.rows = at_(rows.data()), .n_rows = 2, .n_dims = 3, .channel = 1});
  EXPECT_THAT(channel, ::testing::ElementsAre(2, 5));
  EXPECT_THAT(rows, ::testing::ElementsAre(1, 0, 3, 4, 0, 6));
}

TEST_F(CpuBackendTest, ChannelsOfARowAreTakenOutOfItInOrder) {
  std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<float> channels = backend_.TakeChannel({.rows = at_(rows.data()),
                                                            .n_rows = 2,
                                                            .n_dims = 5,
                                                            .channel = 1,
                                                            .n_channels = 2,
                                                            .channels_apart = 2});
  EXPECT_THAT(channels, ::testing::ElementsAre(2, 4, 7, 9));
  EXPECT_THAT(rows, ::testing::ElementsAre(1, 0, 3, 0, 5, 6, 0, 8, 0, 10));
}

TEST_F(CpuBackendTest, RowsThatAreWantedMoveToTheFrontInOrder) {
  std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t wanted[] = {1, 2, 3};
  backend_.TakeRows({.rows = at_(rows.data()), .row_bytes = 8, .from = wanted});
  EXPECT_THAT(rows, ::testing::ElementsAre(3, 4, 5, 6, 7, 8, 7, 8));
}

}  // namespace
}  // namespace kvlathe
