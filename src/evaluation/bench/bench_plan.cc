#include "evaluation/bench/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "base/clock.h"
#include "base/random.h"
#include "evaluation/bench/bench_attention.h"
#include "evaluation/bench/published_schedules.h"
#include "plan/drawn_basis.h"

namespace kvlathe {
namespace {

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

constexpr size_t kSchedules = std::size(kPlanSchedules);

// The load of each worker, [n_workers].
std::vector<double> LoadsOf(std::string_view schedule, std::span<const JobSize> jobs, int n_workers,
                            const CostModel& model, Planner* planner) {
  if (schedule == "flash") return ShareAsFlashAttention2(jobs, model, n_workers).load_ns;
  if (schedule == "zack") return ShareAsZack(jobs, model, n_workers).load_ns;
  for (const Schedule planned : {Schedule::kStatic, Schedule::kLpt}) {
    if (ScheduleName(planned) == schedule) return planner->Plan(jobs, n_workers, planned).load_ns;
  }
  return planner->Plan(jobs, n_workers, Schedule::kBalanced).load_ns;
}

// Shares one draw out by every schedule; adds to a row of each.
void PlanOnce(const std::vector<JobSize>& jobs, const CostModel& model, Planner* planner,
              int n_draws, std::span<PlanBenchRow> rows) {
  double last_ns[kSchedules] = {}, least_mean_ns = INFINITY;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Stopwatch watch;
    const std::vector<double> load_ns =
        LoadsOf(rows[i].schedule, jobs, rows[i].n_workers, model, planner);
    const double plan_us = watch.Seconds() * 1e6;
    rows[i].plan_us = rows[i].plan_us == 0 ? plan_us : std::min(rows[i].plan_us, plan_us);
    last_ns[i] = *std::ranges::max_element(load_ns);
    least_mean_ns = std::min(least_mean_ns, std::accumulate(load_ns.begin(), load_ns.end(), 0.0) /
                                                static_cast<double>(load_ns.size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const double makespan = last_ns[i] / least_mean_ns;
    rows[i].mean_makespan += makespan / n_draws;
    rows[i].worst_makespan = std::max(rows[i].worst_makespan, makespan);
  }
}

bool IsShown(const PlanBenchOptions& options, std::string_view schedule) {
  return options.schedules.empty() ||
         std::ranges::find(options.schedules, schedule) != options.schedules.end();
}

Status CheckSchedules(const PlanBenchOptions& options) {
  for (const std::string& schedule : options.schedules) {
    if (std::ranges::find(kPlanSchedules, schedule) != std::end(kPlanSchedules)) continue;
    return Error(StatusCode::kInvalidArgument, "bench plan: schedule '{}': there are {}", schedule,
                 fmt::join(kPlanSchedules, ", "));
  }
  return OkStatus();
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
  KVL_RETURN_IF_ERROR(CheckSchedules(options));
  PlanBenchReport report{options, {}};
  const CostModel model = CostModelFor(options.isa);
  Planner planner(model);
  std::vector<std::vector<PlanWorkload>> draws;
  for (int d = 0; d < options.n_draws; ++d) draws.push_back(DrawPlanWorkloads(options.seed + d));
  for (size_t w = 0; w < std::size(kWorkloads); ++w) {
    for (int n_workers : options.worker_counts) {
      std::vector<PlanBenchRow> rows;
      for (const std::string_view schedule : kPlanSchedules) {
        rows.push_back({kWorkloads[w].name, n_workers, std::string(schedule)});
      }
      for (const auto& workloads : draws) {
        PlanOnce(workloads[w].jobs, model, &planner, options.n_draws, rows);
      }
      for (PlanBenchRow& row : rows) {
        if (IsShown(options, row.schedule)) report.rows.push_back(std::move(row));
      }
    }
  }
  return report;
}

nlohmann::ordered_json ToJson(const PlanBenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PlanBenchRow& row : report.rows) {
    rows.push_back({{"workload", row.workload},
                    {"workers", row.n_workers},
                    {"schedule", row.schedule},
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
  std::vector<std::string_view> shown;
  for (const std::string_view schedule : kPlanSchedules) {
    if (IsShown(report.options, schedule)) shown.push_back(schedule);
  }
  std::string text = fmt::format(
      "Cost model of {}; mean (and worst) of {} draws from seed {} on. Makespan over mean load.\n\n"
      "| workload | workers | {} | planning us: {} |\n|---|---:|",
      IsaName(report.options.isa), report.options.n_draws, report.options.seed,
      fmt::join(shown, " | "), fmt::join(shown, ", "));
  for (size_t i = 0; i < shown.size() + 1; ++i) text += "---:|";
  text += "\n";
  for (size_t i = 0; i + shown.size() <= report.rows.size(); i += shown.size()) {
    const std::span<const PlanBenchRow> rows(&report.rows[i], shown.size());
    text += fmt::format("| {} | {} |", rows[0].workload, rows[0].n_workers);
    for (const PlanBenchRow& row : rows) {
      text += fmt::format(" {:.3f} ({:.3f}) |", row.mean_makespan, row.worst_makespan);
    }
    for (const PlanBenchRow& row : rows) {
      text += fmt::format("{}{:.1f}", row.schedule == shown.front() ? " " : ", ", row.plan_us);
    }
    text += " |\n";
  }
  return text;
}

}  // namespace kvlathe
