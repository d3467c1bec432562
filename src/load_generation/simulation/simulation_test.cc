// What the scheduler makes of caches of different sizes, on simulated servers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "load_generation/simulation/simulated_sweep.h"

namespace kvlathe {
namespace {

// About what steps of SmolLM2 (135M) with `none` take on two cores.
constexpr StepCosts kAvx512 = {};
constexpr StepCosts kAvx2 = {.step = 8,
                             .prompt_token = 2,
                             .decode_token = 2.2,
                             .prompt_position = 5e-4,
                             .decode_position = 2.2e-3};

struct SweepCase {
  const char* name;
  const char* workload;
  int context;
  StepCosts costs;
};
void PrintTo(const SweepCase& c, std::ostream* out) { *out << c.name; }

StepCosts WithAttention(StepCosts costs, double factor) {
  costs.prompt_position *= factor;
  costs.decode_position *= factor;
  return costs;
}

int CountFromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// How many requests a second each cache bears, over seeds, as a share of the closed loop of `none`.
class ServedRateTest : public ::testing::TestWithParam<SweepCase> {
 protected:
  static SweepOptions Options(uint64_t seed) {
    const PaperWorkload* const paper = FindPaperWorkload(GetParam().workload);
    const double factor = FactorToFit(paper->input, paper->output, GetParam().context);
    return {.input = Scaled(paper->input, factor),
            .output = Scaled(paper->output, factor),
            .seed = seed};
  }
  static std::vector<uint64_t> Seeds() {
    const int first = CountFromEnvironment("KVLATHE_PROPERTY_SEED", 1);
    std::vector<uint64_t> seeds;
    for (int i = 0; i < CountFromEnvironment("KVLATHE_PROPERTY_COUNT", 3); ++i) {
      seeds.push_back(static_cast<uint64_t>(first + i));
    }
    return seeds;
  }
  // `memory` times the KV memory that four requests need with `none`.
  static double MeanServed(const SimulatedCache& cache, double memory = 1) {
    double sum = 0;
    for (const uint64_t seed : Seeds()) {
      const SweepOptions options = Options(seed);
      StatusOr<SweepBase> base = MeasureBase({"none", GetParam().costs}, options);
      EXPECT_TRUE(base.ok()) << base.status();
      if (!base.ok()) return 0;
      base->kv_bytes = static_cast<int64_t>(memory * static_cast<double>(base->kv_bytes));
      const StatusOr<SimulatedSweep> sweep = SimulateSweep(cache, *base, options);
      EXPECT_TRUE(sweep.ok()) << sweep.status();
      if (!sweep.ok()) return 0;
      sum += sweep->served.rate / base->closed_loop_per_s;
    }
    const double mean = sum / static_cast<double>(Seeds().size());
    if (std::getenv("KVLATHE_PROPERTY_TRACE") != nullptr) {
      fmt::print("{}, {}, prompts {:.2f} ms/1000 positions, {} times the memory: {:.3f}\n",
                 GetParam().name, cache.spec, 1000 * cache.costs.prompt_position, memory, mean);
    }
    return mean;
  }
};

// Sweeps meet the bound between two rates with one draw of the requests, so that equal servers
// differ by some hundredths.
constexpr double kOfChance = 0.97;

TEST_P(ServedRateTest, ASmallerCacheBearsNoLessAtTheSameCosts) {
  const double none = MeanServed({"none", GetParam().costs});
  for (const char* spec : {"kivi(bits=4,group=64,newest=32)", "lathe(ratio=8)"}) {
    EXPECT_GE(MeanServed({spec, GetParam().costs}), kOfChance * none) << spec;
  }
}

TEST_P(ServedRateTest, MoreMemoryNeverHurts) {
  const SimulatedCache none = {"none", GetParam().costs};
  const double least = MeanServed(none);
  for (const double memory : {2, 8}) {
    EXPECT_GE(MeanServed(none, memory), kOfChance * least) << memory;
  }
}

// Where attention takes longer, the work is more with any scheduler: what is asked for is that
// holding more does not add to that.
TEST_P(ServedRateTest, ASmallerCacheWithDearerAttentionBearsWhatNoneWouldWithIt) {
  for (const double factor : {1.1, 1.2}) {
    const StepCosts costs = WithAttention(GetParam().costs, factor);
    EXPECT_GE(MeanServed({"lathe(ratio=8)", costs}), kOfChance * MeanServed({"none", costs}))
        << factor;
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, ServedRateTest,
                         ::testing::Values(SweepCase{"LongPrompts", "arxiv", 4096, kAvx512},
                                           SweepCase{"LongPromptsAvx2", "arxiv", 4096, kAvx2},
                                           SweepCase{"ShortPrompts", "humaneval", 1024, kAvx512}),
                         [](const auto& load) { return load.param.name; });

// Requests of given lengths.
class GivenWorkload : public Workload {
 public:
  struct Lengths {
    int input, output;
  };
  explicit GivenWorkload(std::vector<Lengths> lengths) : lengths_(std::move(lengths)) {}
  LoadRequest RequestAt(int64_t index) const override {
    const Lengths lengths = lengths_[static_cast<size_t>(index)];
    return {.prompt_ids = std::vector<int32_t>(static_cast<size_t>(lengths.input), 1),
            .n_input = lengths.input,
            .n_output = lengths.output};
  }
  int64_t n_requests() const { return std::ssize(lengths_); }

 private:
  std::vector<Lengths> lengths_;
};

LoadRecords ServeAtOnce(const GivenWorkload& workload, const SimulatedServerOptions& options) {
  auto server = SimulatedServer::Create("none");
  EXPECT_TRUE(server.ok()) << server.status();
  auto records = (*server)->Serve(workload, {.n_requests = workload.n_requests()}, options);
  EXPECT_TRUE(records.ok()) << records.status();
  return *std::move(records);
}

constexpr int64_t kPlenty = int64_t{1} << 30;

TEST(SimulatedServerTest, TimeIsWhatTheStepsCost) {
  const StepCosts costs = {.step = 10,
                           .prompt_token = 1,
                           .decode_token = 2,
                           .prompt_position = 0.01,
                           .decode_position = 0.1};
  const LoadRecords records =
      ServeAtOnce(GivenWorkload({{100, 3}}), {.costs = costs, .kv_bytes = kPlenty});
  const RequestRecord& record = records.requests.front();
  EXPECT_TRUE(record.succeeded()) << record.error;
  EXPECT_EQ(record.n_output, 3);
  EXPECT_NEAR(record.ttft_s, 1e-3 * (10 + 100 + 0.01 * 100 * 101 / 2), 1e-9);
  ASSERT_EQ(record.itl_s.size(), 2u);
  EXPECT_NEAR(record.itl_s[0], 1e-3 * (10 + 2 + 0.1 * 101), 1e-9);
  EXPECT_NEAR(record.itl_s[1], 1e-3 * (10 + 2 + 0.1 * 102), 1e-9);
  EXPECT_NEAR(record.latency_s, record.ttft_s + record.itl_s[0] + record.itl_s[1], 1e-9);
}

// Answers that hardly end, and prompts that are read beside them in the order in which they came.
TEST(SimulatedServerTest, NoPromptWaitsForLongAndNoneOvertakes) {
  std::vector<GivenWorkload::Lengths> lengths(8, {20, 3000});
  lengths.insert(lengths.end(), {{9000, 2}, {50, 2}, {4000, 2}, {600, 2}});
  const StepCosts costs = {.step = 1,
                           .prompt_token = 0,
                           .decode_token = 0,
                           .prompt_position = 0,
                           .decode_position = 0};  // so that seconds count steps
  const LoadRecords records =
      ServeAtOnce(GivenWorkload(lengths), {.costs = costs, .kv_bytes = kPlenty});
  for (size_t i = 1; i < lengths.size(); ++i) {
    EXPECT_GE(records.requests[i].ttft_s, records.requests[i - 1].ttft_s) << i;
  }
  // 13,650 tokens take 28 steps of 504; and before each of four prompts 64 may pass.
  EXPECT_LE(records.requests.back().ttft_s, 1e-3 * (1 + 28 + 4 * 64));
  for (const RequestRecord& record : records.requests) EXPECT_TRUE(record.succeeded());
}

TEST(SimulatedServerTest, WhatCanNeverRunIsAnError) {
  auto server = SimulatedServer::Create("none");
  ASSERT_TRUE(server.ok()) << server.status();
  const GivenWorkload workload({{5000, 5}});
  const auto records = (*server)->Serve(workload, {.n_requests = 1}, {.kv_bytes = 1 << 20});
  EXPECT_EQ(records.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(SimulatedServer::Create("no such cache").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
