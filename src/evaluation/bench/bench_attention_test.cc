#include "evaluation/bench/bench_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "evaluation/bench/bench_attention_case.h"
#include "evaluation/bench/published_schedules.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/spec/spec.h"
#include "plan/drawn_basis.h"

namespace kvlathe {
namespace {

TEST(DrawRanksTest, KeepsTheMeanAndStaysInRange) {
  for (double rate : {0.1, 0.25, 0.5, 0.6, 0.95}) {
    const std::vector<int> ranks = DrawRanks(37, 128, rate, 4);
    ASSERT_EQ(ranks.size(), 74u);
    for (int rank : ranks) {
      EXPECT_EQ(rank % 16, 0);
      EXPECT_GE(rank, 16);
      EXPECT_LE(rank, 128);
    }
    const double want = std::max(74.0 * 16, (1 - rate) * 128 * 74);
    const int sum = std::accumulate(ranks.begin(), ranks.end(), 0);
    EXPECT_GE(sum, want);
    EXPECT_LT(sum, want + 16);
  }
}

TEST(DrawRanksTest, SpreadIsThirtyPercentOfTheMean) {
  const std::vector<int> ranks = DrawRanks(1000, 128, 0.5, 4);
  double sum_squares = 0;
  for (int rank : ranks) sum_squares += (rank - 64.0) * (rank - 64.0);
  // Rounding to multiples of 16 adds 16^2 / 12 to the variance.
  EXPECT_NEAR(std::sqrt(sum_squares / 2000), std::sqrt(0.3 * 64 * 0.3 * 64 + 256.0 / 12), 1.0);
}

TEST(DrawRanksTest, RateZeroIsFullRank) {
  EXPECT_EQ(DrawRanks(3, 80, 0, 1), std::vector<int>(6, 80));
}

TEST(DrawRanksTest, TheSameSeedDrawsTheSameRanks) {
  EXPECT_EQ(DrawRanks(20, 128, 0.5, 7), DrawRanks(20, 128, 0.5, 7));
  EXPECT_NE(DrawRanks(20, 128, 0.5, 7), DrawRanks(20, 128, 0.5, 8));
}

TEST(UniformRanksTest, AllHeadsHaveTheSameRanksAndNoMoreGoesThanTheRateAllows) {
  for (double rate : {0.0, 0.25, 0.3, 0.5, 0.9}) {
    const std::vector<HeadRanks> ranks = UniformRanks(5, 128, rate);
    ASSERT_EQ(ranks.size(), 5u);
    for (const HeadRanks& r : ranks) EXPECT_EQ(r, ranks[0]);
    const int kept = ranks[0].rank_k + ranks[0].rank_v;
    EXPECT_GE(kept, (1 - rate) * 256);
    EXPECT_LT(kept - 16, std::max(32.0, (1 - rate) * 256));
  }
}

TEST(AttentionBenchTest, UniformRanksReadTheirBytes) {
  AttentionBenchOptions options{.phases = {BenchPhase::kDecode}, .contexts = {64}};
  options.specs = {{.kv = "fdc(rate=0.3,ranks=uniform)", .rate = 0.3, .has_uniform_ranks = true}};
  const AttentionCase made = MakeCase(options, BenchPhase::kDecode, 64, options.specs[0]);
  for (const BlockShape& shape : made.layout.shapes) {
    EXPECT_EQ(shape.rank_k, 96);
    EXPECT_EQ(shape.rank_v, 96);
  }
}

// A cache of four layers with two heads each, which differ in their ranks.
BenchCache CacheOfModel() {
  CacheLayout layout{.n_layers = 4, .n_kv_heads = 2, .head_dim = 64};
  for (int i = 0; i < 8; ++i) layout.shapes.push_back({8 + 4 * i, 64, DType::kBf16});
  return {.kv = "fdc(rate=0.3)", .of_model = layout};
}

TEST(AttentionBenchTest, LayersOfAModelAreTakenInTurnOrEvenly) {
  const BenchCache cache = CacheOfModel();
  AttentionBenchOptions options{.n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const AttentionCase whole = MakeCase(options, BenchPhase::kDecode, 8192, cache);
  ASSERT_GT(whole.n_layers, 8);
  ASSERT_EQ(std::ssize(whole.layout.shapes), 2 * whole.n_layers);
  for (int i = 0; i < 2 * whole.n_layers; ++i) {
    EXPECT_EQ(whole.layout.shapes[i].rank_k, 8 + 4 * (i % 8)) << i;
  }
  options.n_layers = 2;
  const AttentionCase few = MakeCase(options, BenchPhase::kDecode, 8192, cache);
  std::vector<int> ranks;
  for (const BlockShape& shape : few.layout.shapes) ranks.push_back(shape.rank_k);
  EXPECT_EQ(ranks, (std::vector<int>{8, 12, 24, 28}));  // layers 0 and 2
  EXPECT_EQ(few.row.bytes, 8192 * 2 * (4 * 64 + 8 + 12 + 24 + 28) / 2);
}

TEST(AttentionBenchTest, RefusesTheCacheOfAnotherModel) {
  AttentionBenchOptions options{.n_heads = 8, .n_kv_heads = 4, .head_dim = 64};
  options.specs = {CacheOfModel()};
  EXPECT_EQ(RunAttentionBench(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(AttentionBenchTest, RefusesOptionsThatMakeNoSense) {
  const auto code_of = [](const AttentionBenchOptions& options) {
    return RunAttentionBench(options).status().code();
  };
  EXPECT_EQ(code_of({.n_heads = 30}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.head_dim = 100}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.n_layers = -1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.n_threads = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.contexts = {0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.contexts = {1 << 30}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.contexts = {65}, .n_kv_heads = 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.contexts = {1}, .n_heads = 512, .n_kv_heads = 512}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.specs = {{"fdc(rate=1)", 1}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({.schedules = {"fastest"}}), StatusCode::kInvalidArgument);
}

// However the rows are shared out, what comes of them is the same but for rounding.
TEST(AttentionBenchTest, PublishedSchedulesComputeTheSame) {
  const AttentionBenchOptions options = {.n_heads = 8,
                                         .n_kv_heads = 4,
                                         .head_dim = 64,
                                         .prefill_tokens = 300,
                                         .isa = AvailableIsas().back()};
  AttentionCase c = MakeCase(options, BenchPhase::kPrefill, 640, {.kv = "fdc", .rate = 0.5});
  ThreadPool pool(3);
  BenchMemory memory;
  const int64_t n_numbers = int64_t{300} * 8 * 64;
  memory.blocks = Buffer::Allocate(AllBlockBytes(c), "test").value();
  memory.q = Buffer::Allocate(2 * n_numbers, "test").value();
  memory.out = Buffer::Allocate(2 * n_numbers, "test").value();
  FillNormal(&pool, 1, AllBlockBytes(c), memory.blocks.data());
  FillNormal(&pool, 2, 2 * n_numbers, memory.q.data());
  std::fill_n(memory.out.as<uint16_t>(), n_numbers, uint16_t{0});
  ASSERT_TRUE(BuildCase(options, &memory, &pool, &c).ok());
  Attention attention(&pool, options.isa, &memory.machine->device, &memory.machine->residents);
  ASSERT_TRUE(attention.Run(c.jobs, {1.0f / 8}, Schedule::kBalanced).ok());
  std::vector<float> expected(n_numbers);
  for (int64_t i = 0; i < n_numbers; ++i) expected[i] = ToFloat(memory.out.as<Bf16>()[i]);
  for (const auto share : {ShareAsFlashAttention2, ShareAsZack}) {
    std::fill_n(memory.out.as<uint16_t>(), n_numbers, uint16_t{0});
    AttentionPlan plan;
    const auto make = [&](std::span<const JobSize> sizes, int n_workers) -> AttentionPlan& {
      return plan = PlanOf(share(sizes, CostModelFor(options.isa), n_workers), sizes);
    };
    ASSERT_TRUE(attention.RunAs(c.jobs, {1.0f / 8}, make).ok());
    double square = 0;
    for (int64_t i = 0; i < n_numbers; ++i) {
      ASSERT_NEAR(ToFloat(memory.out.as<Bf16>()[i]), expected[i], 0.02) << i;
      square += expected[i] * expected[i];
    }
    EXPECT_GT(square, 1);
  }
}

// Outputs are means of values, and of those none is beyond 8.
TEST(AttentionBenchTest, LatentKeysAreAttendedTo) {
  for (const char* kv : {"lathe(ratio=8,keys=before,scales=static)", "palu(rate=0.5)"}) {
    SCOPED_TRACE(kv);
    const Spec spec = Spec::Parse(kv).value();
    const bool has_bits = FactsOf(spec.sealing()).splits_bits;
    const BenchCache cache = {.kv = kv,
                              .rate = has_bits ? 0 : 0.5,
                              .seal = SealPlanOf(spec),
                              .ratio = has_bits ? 8.0 : 0,
                              .keys = spec.keys()};
    const AttentionBenchOptions options = {.n_heads = 4,
                                           .n_kv_heads = 2,
                                           .head_dim = 64,
                                           .prefill_tokens = 16,
                                           .isa = AvailableIsas().back()};
    AttentionCase c = MakeCase(options, BenchPhase::kPrefill, 640, cache);
    EXPECT_GT(c.row.flops, 2.0 * 64 * 16 * 624 * 4);
    ThreadPool pool(1);
    BenchMemory memory;
    const int64_t n_rows = 16 * 4 * 64;
    memory.blocks = Buffer::Allocate(AllBlockBytes(c), "test").value();
    memory.q = Buffer::Allocate(2 * n_rows, "test").value();
    memory.out = Buffer::Allocate(2 * n_rows, "test").value();
    FillNormal(&pool, 1, AllBlockBytes(c), memory.blocks.data());
    FillNormal(&pool, 2, 2 * n_rows, memory.q.data());
    std::fill_n(memory.out.as<uint16_t>(), n_rows, uint16_t{0});
    ASSERT_TRUE(BuildCase(options, &memory, &pool, &c).ok());
    Attention attention(&pool, options.isa, &memory.machine->device, &memory.machine->residents);
    ASSERT_TRUE(attention.Run(c.jobs, {1.0f / 8}, Schedule::kBalanced).ok());
    double square = 0;
    for (int64_t i = 0; i < n_rows; ++i) {
      const double x = ToFloat(memory.out.as<Bf16>()[i]);
      ASSERT_LE(std::abs(x), 8) << i;
      square += x * x;
    }
    EXPECT_GT(square, 1);
  }
}

TEST(AttentionBenchTest, JsonHasTheFieldsOfTheContract) {
  AttentionBenchReport report;
  report.rows.push_back({.kv = "none"});
  const nlohmann::ordered_json json = ToJson(report);
  for (const char* key : {"device", "threads", "read_gb_per_s", "rows"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"phase", "context", "n_heads", "n_kv_heads", "head_dim", "kv", "time_us",
                          "bytes", "working_set_bytes", "speedup_vs_none", "fraction_of_limit"}) {
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["rows"][0]["phase"], "decode");
}

}  // namespace
}  // namespace kvlathe
