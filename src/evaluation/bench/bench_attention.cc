#include "evaluation/bench/bench_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/clock.h"
#include "base/threads.h"
#include "base/units.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "evaluation/bench/bench_attention_case.h"
#include "evaluation/bench/bench_plan.h"
#include "evaluation/bench/published_schedules.h"

namespace kvlathe {
namespace {

constexpr double kMaxFraction = 1.05;
// With the 1 GiB that measuring read bandwidth takes, 3.5 GiB. Blocks of a model whose layers have
// unlike bits are mostly padding: all are as large as the largest.
constexpr int64_t kMaxBlockBytes = int64_t{10} << 28;
constexpr int64_t kMinLayerBytes = int64_t{128} << 10;
constexpr int64_t kMaxQueryBytes = int64_t{1} << 28;

// Nothing for one that was published.
std::optional<Schedule> PlannedSchedule(std::string_view name) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kLpt, Schedule::kBalanced}) {
    if (ScheduleName(schedule) == name) return schedule;
  }
  return std::nullopt;
}

StatusOr<double> TimePass(const AttentionBenchOptions& options, AttentionCase* c,
                          Attention* attention) {
  const ScoreRule rule = {.scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  const std::optional<Schedule> planned = PlannedSchedule(c->row.schedule);
  std::vector<AttentionPlan>& published = c->published_plans;
  const Stopwatch watch;
  for (int l = 0; l < c->n_layers; ++l) {
    const std::span<const HeadJob> jobs = {c->jobs.data() + l * c->layout.n_kv_heads,
                                           static_cast<size_t>(c->layout.n_kv_heads)};
    const auto plan_of = [&](std::span<const JobSize> sizes, int n_workers) -> AttentionPlan& {
      if (static_cast<size_t>(l) < published.size()) return published[l];
      const CostModel model = CostModelFor(options.isa);
      const PublishedShares shares = c->row.schedule == "flash"
                                         ? ShareAsFlashAttention2(sizes, model, n_workers)
                                         : ShareAsZack(sizes, model, n_workers);
      return published.emplace_back(PlanOf(shares, sizes));
    };
    KVL_RETURN_IF_ERROR(planned.has_value() ? attention->Run(jobs, rule, *planned)
                                            : attention->RunAs(jobs, rule, plan_of));
  }
  return watch.Seconds();
}

Status CheckOptions(const AttentionBenchOptions& o) {
  const auto refuse = [](const char* what, auto value, const char* instead) {
    return Error(StatusCode::kInvalidArgument, "bench attention: {} {}: {}", what, value, instead);
  };
  if (o.n_kv_heads < 1) return refuse("n_kv_heads", o.n_kv_heads, "give at least 1");
  if (o.n_heads < 1 || o.n_heads % o.n_kv_heads != 0) {
    return refuse("n_heads", o.n_heads, "give a multiple of n_kv_heads");
  }
  if (o.head_dim < 16 || o.head_dim > 256 || o.head_dim % 16 != 0) {
    return refuse("head_dim", o.head_dim, "give a multiple of 16 from 16 to 256");
  }
  if (o.n_layers < 0) return refuse("layers", o.n_layers, "give at least 1");
  for (const BenchCache& spec : o.specs) {
    if (!spec.of_model.has_value()) continue;
    const CacheLayout& layout = *spec.of_model;
    const int heads_per_map = HeadsPerMap(spec.keys);
    if (layout.n_layers < 1 || layout.n_kv_heads * heads_per_map != o.n_kv_heads ||
        layout.head_dim != o.head_dim * heads_per_map) {
      return refuse("kv", spec.kv, "the cache is not one of a model of these heads");
    }
  }
  if (o.n_threads < 1) return refuse("threads", o.n_threads, "give at least 1");
  if (o.n_repetitions < 1) return refuse("repetitions", o.n_repetitions, "give at least 1");
  if (o.prefill_tokens < 1) return refuse("prefill tokens", o.prefill_tokens, "give at least 1");
  if (!(o.length_ratio >= 1 && o.length_ratio <= 1000)) {
    return refuse("length ratio", o.length_ratio, "give a number from 1 to 1000");
  }
  for (const BenchCache& spec : o.specs) {
    if (o.length_ratio > 1 && spec.seal.has_value()) {
      return refuse("kv", spec.kv, "sealed heads are equally long; leave the length ratio out");
    }
  }
  for (const std::string& schedule : o.schedules) {
    if (std::ranges::find(kPlanSchedules, schedule) != std::end(kPlanSchedules)) continue;
    return refuse("schedule", schedule, "give one of static, lpt, balanced, flash and zack");
  }
  for (int context : o.contexts) {
    if (context < 1) return refuse("context", context, "give at least 1");
  }
  for (const BenchCache& spec : o.specs) {
    if (!(spec.rate >= 0 && spec.rate < 1)) {
      return refuse("rate", spec.rate, "give a number from 0 to less than 1");
    }
  }
  return OkStatus();
}

StatusOr<std::vector<AttentionCase>> MakeCases(const AttentionBenchOptions& options) {
  std::vector<BenchCache> specs = options.specs;
  const auto none = std::find_if(specs.begin(), specs.end(), std::mem_fn(&BenchCache::is_none));
  if (none == specs.end()) {
    specs.insert(specs.begin(), {"none"});
  } else {
    std::rotate(specs.begin(), none, none + 1);
  }
  std::vector<AttentionCase> cases;
  for (BenchPhase phase : options.phases) {
    for (int context : options.contexts) {
      // Before anything is built for it.
      const int64_t layer_bytes = int64_t{4} * options.head_dim * options.n_kv_heads * context;
      const int64_t query_bytes = int64_t{2} * options.head_dim * options.n_heads *
                                  std::min(context, options.prefill_tokens);
      if (layer_bytes < kMinLayerBytes || layer_bytes > kMaxBlockBytes / 2 ||
          query_bytes > kMaxQueryBytes) {
        return Error(
            StatusCode::kInvalidArgument,
            "bench attention: context {} with {} KV heads of {} takes {} a layer and {} of "
            "queries; choose a layer of {} to {} and queries of at most {}",
            context, options.n_kv_heads, options.head_dim, FormatBytes(layer_bytes),
            FormatBytes(query_bytes), FormatBytes(kMinLayerBytes), FormatBytes(kMaxBlockBytes / 2),
            FormatBytes(kMaxQueryBytes));
      }
      for (size_t i = 0; i < specs.size() * options.schedules.size(); ++i) {
        const BenchCache& spec = specs[i / options.schedules.size()];
        cases.push_back(MakeCase(options, phase, context, spec));
        cases.back().row.schedule = options.schedules[i % options.schedules.size()];
        // Short contexts may be mostly padding.
        if (AllBlockBytes(cases.back()) <= kMaxBlockBytes) continue;
        return Error(StatusCode::kInvalidArgument,
                     "bench attention: context {} with {} takes {} of blocks, more than {}; choose "
                     "a context that fills its blocks of {} entries",
                     context, spec.kv, FormatBytes(AllBlockBytes(cases.back())),
                     FormatBytes(kMaxBlockBytes), kBlockSize);
      }
    }
  }
  return cases;
}

Status MeasureComputeLimits(ThreadPool* pool, Isa isa, AttentionBenchReport* report) {
  KVL_ASSIGN_OR_RETURN(const double gemm_flops, MeasureGemmPeak(*pool, isa));
  report->gemm_tflop_per_s = std::max(report->gemm_tflop_per_s, gemm_flops * 1e-12);
  report->integer_tdot_per_s =
      std::max(report->integer_tdot_per_s, MeasureIntegerPeak(*pool, isa) * 1e-12);
  return OkStatus();
}

// Also the read limit, over the memory that holds the blocks.
Status MeasureCases(const AttentionBenchOptions& options, ThreadPool* pool,
                    AttentionBenchReport* report, std::vector<AttentionCase>* cases) {
  int64_t block_bytes = kReadWorkingSetBytes, n_query_tokens = 1;
  int heads_per_map = 1;
  for (const AttentionCase& c : *cases) {
    block_bytes = std::max(block_bytes, AllBlockBytes(c));
    n_query_tokens = std::max<int64_t>(n_query_tokens, c.row.n_tokens);
    // Values of rows that keys and values share are twice as wide.
    heads_per_map = std::max(heads_per_map, HeadsPerMap(c.keys) * (JoinsValues(c.keys) ? 2 : 1));
  }
  const int64_t query_bytes =
      int64_t{2} * n_query_tokens * options.n_heads * options.head_dim * heads_per_map;
  BenchMemory memory;
  KVL_ASSIGN_OR_RETURN(memory.blocks, Buffer::Allocate(block_bytes, "benchmark blocks"));
  KVL_ASSIGN_OR_RETURN(memory.q, Buffer::Allocate(query_bytes, "benchmark queries"));
  KVL_ASSIGN_OR_RETURN(memory.out, Buffer::Allocate(query_bytes, "benchmark outputs"));
  FillNormal(pool, options.seed, block_bytes, memory.blocks.data());
  FillNormal(pool, ~options.seed, query_bytes, memory.q.data());
  for (AttentionCase& c : *cases) KVL_RETURN_IF_ERROR(BuildCase(options, &memory, pool, &c));
  Attention attention(pool, options.isa, &memory.machine->device, &memory.machine->residents);
  for (int repetition = -1; repetition < options.n_repetitions; ++repetition) {
    const double read_seconds =
        ReadPassSeconds(*pool, options.isa, memory.blocks.data(), kReadWorkingSetBytes);
    report->read_gb_per_s =
        std::max(report->read_gb_per_s, kReadWorkingSetBytes / read_seconds * 1e-9);
    for (AttentionCase& c : *cases) {
      PlaceCounts(c, &memory);
      if (options.n_layers > 0 && c.row.phase == BenchPhase::kDecode) {
        // Other cases have filled the caches since.
        KVL_RETURN_IF_ERROR(TimePass(options, &c, &attention).status());
      }
      KVL_ASSIGN_OR_RETURN(const double seconds, TimePass(options, &c, &attention));
      if (repetition >= 0) c.pass_seconds.push_back(seconds);  // the first pass warms up
    }
  }
  return OkStatus();
}

// Times, speedups and fractions, once all cases and both limits are measured.
Status Judge(const AttentionBenchOptions& options, const std::vector<AttentionCase>& cases,
             AttentionBenchReport* report) {
  double none_us = 0;  // of the same phase and context
  BenchPhase phase = BenchPhase::kDecode;
  int context = 0;
  for (const AttentionCase& c : cases) {
    AttentionBenchRow row = c.row;
    const double seconds =
        *std::min_element(c.pass_seconds.begin(), c.pass_seconds.end()) / c.n_layers;
    row.time_us = seconds * 1e6;
    if (row.phase != phase || row.context != context) {
      phase = row.phase;
      context = row.context;
      none_us = row.time_us;  // `none` is the first spec
    }
    row.speedup_vs_none = none_us / row.time_us;
    const double read_seconds =
        options.n_layers > 0 ? 0 : static_cast<double>(row.bytes) / (report->read_gb_per_s * 1e9);
    const bool has_codes = !c.extents.empty();
    const double tflop_per_s =
        has_codes ? std::max(report->gemm_tflop_per_s, 2 * report->integer_tdot_per_s)
                  : report->gemm_tflop_per_s;
    const double compute_seconds = row.flops / (tflop_per_s * 1e12);
    row.fraction_of_limit = std::max(read_seconds, compute_seconds) / seconds;
    // In the caches even a short disturbance of the peak, which is measured apart, makes a share of
    // more than 1.
    if (options.n_layers == 0 && row.fraction_of_limit > kMaxFraction) {
      return Error(
          StatusCode::kInternal,
          "bench attention: {} at context {} with {} ran at {:.2f} of the measured limits, "
          "which cannot be; run again on an idle machine",
          PhaseName(row.phase), row.context, row.kv, row.fraction_of_limit);
    }
    report->rows.push_back(std::move(row));
  }
  return OkStatus();
}

}  // namespace

StatusOr<AttentionBenchReport> RunAttentionBench(const AttentionBenchOptions& options) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  KVL_ASSIGN_OR_RETURN(std::vector<AttentionCase> cases, MakeCases(options));
  AttentionBenchReport report;
  report.device = ProcessorName(options.isa);
  report.n_heads = options.n_heads;
  report.n_kv_heads = options.n_kv_heads;
  report.head_dim = options.head_dim;
  report.n_threads = options.n_threads;
  report.seed = options.seed;
  ThreadPool pool(options.n_threads);
  KVL_RETURN_IF_ERROR(MeasureComputeLimits(&pool, options.isa, &report));
  KVL_RETURN_IF_ERROR(MeasureCases(options, &pool, &report, &cases));
  KVL_RETURN_IF_ERROR(MeasureComputeLimits(&pool, options.isa, &report));
  KVL_RETURN_IF_ERROR(Judge(options, cases, &report));
  return report;
}

}  // namespace kvlathe
