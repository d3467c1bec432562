// `kvlathe bench plan` shows how evenly the planner shares attention among workers. Pure
// computation on drawn sizes, by the cost model; only the planning time is measured.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "machine/attention/plan.h"

namespace kvlathe {

struct PlanBenchOptions {
  std::vector<int> worker_counts = {2, 4, 8, 16, 32, 64, 132};
  int n_draws = 20;  // of ranks and lengths, for every row
  uint64_t seed = 1;
  Isa isa = Isa::kAvx512Bf16;  // whose cost model plans
  // Of kPlanSchedules, which rows are shown of; empty: all. What is not shown is simulated too.
  std::vector<std::string> schedules = {};
};

// Those of the planner (machine/attention/schedule.h), and as they were published
// (published_schedules.h): "flash" is FlashAttention-2's, "zack" that of ZACK and FDC.
inline constexpr std::string_view kPlanSchedules[] = {"static", "lpt", "flash", "zack", "balanced"};

struct PlanBenchRow {
  std::string workload;
  int n_workers = 0;
  std::string schedule;  // of kPlanSchedules
  // Time of the last worker to finish over the mean load of the schedule that adds least work: 1
  // would be perfect, and what cutting costs counts.
  double mean_makespan = 0;  // over the draws
  double worst_makespan = 0;
  double plan_us = 0;  // to make the plan, the least of all draws
};

struct PlanBenchReport {
  PlanBenchOptions options;
  std::vector<PlanBenchRow> rows;
};

// kInvalidArgument for counts below 1, workers above 1024, or a schedule that is not there.
StatusOr<PlanBenchReport> RunPlanBench(const PlanBenchOptions& options);

// One layer of each workload, as jobs: KV heads times sequences. For tests.
struct PlanWorkload {
  std::string name;
  std::vector<JobSize> jobs;
};
std::vector<PlanWorkload> DrawPlanWorkloads(uint64_t seed);

// {"isa","draws","seed","rows":[{"workload","workers","schedule","mean_makespan","worst_makespan",
// "plan_us"}]}
nlohmann::ordered_json ToJson(const PlanBenchReport& report);
std::string ToMarkdown(const PlanBenchReport& report);

}  // namespace kvlathe
