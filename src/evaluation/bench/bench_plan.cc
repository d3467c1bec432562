#include "evaluation/bench/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "base/random.h"
#include "evaluation/bench/bench_attention.h"
#include "plan/drawn_basis.h"

namespace kvlathe {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kStatic, Schedule::kLpt, Schedule::kBalanced};
constexpr int kHeadDim = 128;

struct WorkloadShape {
  const char* name;
  int n_sequences, n_kv_heads, gqa_group, n_tokens;
  int min_entries, max_entries;  // of a sequence, or of each head where `heads_differ`
  double rate;                   // of the drawn ranks; 0: full
  bool heads_differ = false;
};

constexpr WorkloadShape kWorkloads[] = {
    {"decode, 1 sequence of 128k, ranks drawn", 1, 8, 4, 1, 131072, 131072, 0.5},
    {"decode, 16 sequences of 2k to 32k", 16, 8, 4, 1, 2048, 32768, 0},
    {"decode, 16 of 2k to 32k, ranks drawn", 16, 8, 4, 1, 2048, 32768, 0.5},
    {"decode, 16, heads of 2k to 32k, ranks drawn", 16, 8, 4, 1, 2048, 32768, 0.5, true},
    {"decode, 64 of 4k to 8k, MHA, ranks drawn", 64, 32, 1, 1, 4096, 8192, 0.5},
    {"prefill, 1 prompt of 8k, ranks drawn", 1, 8, 4, 8192, 8192, 8192, 0.5},
    {"prefill, 4 chunks of 512 at 2k to 8k, ranks drawn", 4, 8, 4, 512, 2048, 8192, 0.5},
};

// Evenly on a logarithmic scale.
int DrawEntries(Random* random, const WorkloadShape& shape) {
  const double ratio = static_cast<double>(shape.max_entries) / shape.min_entries;
  return static_cast<int>(std::lround(shape.min_entries * std::pow(ratio, random->Uniform())));
}

PlanWorkload DrawWorkload(const WorkloadShape& shape, uint64_t seed) {
  Random random(seed, 1);
  const int n_jobs = shape.n_sequences * shape.n_kv_heads;
  const std::vector<int> ranks = DrawRanks(n_jobs, kHeadDim, shape.rate, seed);
  PlanWorkload workload{shape.name, {}};
  int n_entries = 0;
  for (int i = 0; i < n_jobs; ++i) {
    if (shape.heads_differ || i % shape.n_kv_heads == 0) n_entries = DrawEntries(&random, shape);
    workload.jobs.push_back({.n_tokens = shape.n_tokens,
                             .gqa_group = shape.gqa_group,
                             .n_entries = n_entries,
                             .first_visible = n_entries - shape.n_tokens + 1,
                             .rank_k = ranks[2 * i],
                             .rank_v = ranks[2 * i + 1]});
  }
  return workload;
}

// Plans one draw with every schedule; adds to three rows.
void PlanOnce(const std::vector<JobSize>& jobs, Planner* planner, int n_draws, PlanBenchRow* rows) {
  double last_ns[3] = {}, least_mean_ns = INFINITY;
  for (int i = 0; i < 3; ++i) {
    const Stopwatch watch;
    const AttentionPlan& plan = planner->Plan(jobs, rows[i].n_workers, kSchedules[i]);
    const double plan_us = watch.Seconds() * 1e6;
    rows[i].plan_us = rows[i].plan_us == 0 ? plan_us : std::min(rows[i].plan_us, plan_us);
    last_ns[i] = *std::ranges::max_element(plan.load_ns);
    least_mean_ns =
        std::min(least_mean_ns, std::accumulate(plan.load_ns.begin(), plan.load_ns.end(), 0.0) /
                                    static_cast<double>(plan.load_ns.size()));
  }
  for (int i = 0; i < 3; ++i) {
    const double makespan = last_ns[i] / least_mean_ns;
    rows[i].mean_makespan += makespan / n_draws;
    rows[i].worst_makespan = std::max(rows[i].worst_makespan, makespan);
  }
}

}  // namespace

std::vector<PlanWorkload> DrawPlanWorkloads(uint64_t seed) {
  std::vector<PlanWorkload> workloads;
  for (const WorkloadShape& shape : kWorkloads) workloads.push_back(DrawWorkload(shape, seed));
  return workloads;
}

StatusOr<PlanBenchReport> RunPlanBench(const PlanBenchOptions& options) {
  if (options.n_draws < 1) {
    return Error(StatusCode::kInvalidArgument, "bench plan: draws {}: give at least 1",
                 options.n_draws);
  }
  for (int n : options.worker_counts) {
    if (n >= 1 && n <= 1024) continue;
    return Error(StatusCode::kInvalidArgument, "bench plan: workers {}: give 1 to 1024", n);
  }
  PlanBenchReport report{options, {}};
  Planner planner(CostModelFor(options.isa));
  std::vector<std::vector<PlanWorkload>> draws;
  for (int d = 0; d < options.n_draws; ++d) draws.push_back(DrawPlanWorkloads(options.seed + d));
  for (size_t w = 0; w < std::size(kWorkloads); ++w) {
    for (int n_workers : options.worker_counts) {
      PlanBenchRow rows[3];
      for (int i = 0; i < 3; ++i) rows[i] = {kWorkloads[w].name, n_workers, kSchedules[i]};
      for (const auto& workloads : draws) {
        PlanOnce(workloads[w].jobs, &planner, options.n_draws, rows);
      }
      report.rows.insert(report.rows.end(), rows, rows + 3);
    }
  }
  return report;
}

nlohmann::ordered_json ToJson(const PlanBenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PlanBenchRow& row : report.rows) {
    rows.push_back({{"workload", row.workload},
                    {"workers", row.n_workers},
                    {"schedule", ScheduleName(row.schedule)},
                    {"mean_makespan", row.mean_makespan},
                    {"worst_makespan", row.worst_makespan},
                    {"plan_us", row.plan_us}});
  }
  return {{"isa", IsaName(report.options.isa)},
          {"draws", report.options.n_draws},
          {"seed", report.options.seed},
          {"rows", std::move(rows)}};
}

std::string ToMarkdown(const PlanBenchReport& report) {
  std::string text = fmt::format(
      "Cost model of {}; mean (and worst) of {} draws from seed {} on. Makespan over mean load.\n\n"
      "| workload | workers | static | lpt | balanced | planning us: static, lpt, balanced |\n"
      "|---|---:|---:|---:|---:|---:|\n",
      IsaName(report.options.isa), report.options.n_draws, report.options.seed);
  for (size_t i = 0; i + 2 < report.rows.size(); i += 3) {
    const PlanBenchRow* row = &report.rows[i];
    const auto cell = [](const PlanBenchRow& r) {
      return fmt::format("{:.3f} ({:.3f})", r.mean_makespan, r.worst_makespan);
    };
    text += fmt::format("| {} | {} | {} | {} | {} | {:.1f}, {:.1f}, {:.1f} |\n", row->workload,
                        row->n_workers, cell(row[0]), cell(row[1]), cell(row[2]), row[0].plan_us,
                        row[1].plan_us, row[2].plan_us);
  }
  return text;
}

}  // namespace kvlathe
