// kvlathe bench: attention against the machine's limits; whole models in llama-bench's terms;
// plans. Load on servers is in bench_serve.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "analysis/bases/lathe.h"
#include "evaluation/bench/bench_attention.h"
#include "evaluation/bench/bench_model.h"
#include "evaluation/bench/bench_plan.h"
#include "evaluation/bench/bench_scheduler.h"
#include "kvlathe/bench_serve/bench_serve.h"
#include "kvlathe/open_workspace.h"
#include "plan/basis_analyses.h"
#include "plan/drawn_basis.h"

namespace kvlathe {
namespace {

// Times of a basis are those of its ranks, and random weights have no spectrum to choose them by.
constexpr std::string_view kDrawnRanks =
    "Ranks are drawn at random with the mean that rate asks for, the same for every basis, or "
    "ranks=uniform; bits of lathe(ratio=X) are those for spectra that fall exponentially. So these "
    "times do not compare one basis with another at the ranks that a real model would give them.";

struct BenchModelOptions {
  ModelOptions model;
  std::string random_model;
  std::optional<double> compression;
  std::vector<int> n_prompt = {512};
  std::vector<int> n_gen = {128};
  std::vector<int> n_depth = {0};
  std::vector<int> n_parallel = {1};
  std::vector<std::string> schedules = {"balanced"};
  int n_repetitions = 5;
  bool has_limits = false;
  bool leaves_bandwidth = false;
  bool tells_waiting = false;
};

bool Generates(const ModelBenchCase& test) { return test.n_gen > 0; }

std::vector<ModelBenchCase> ListTests(const BenchModelOptions& options) {
  std::vector<ModelBenchCase> tests;
  for (const int n_parallel : options.n_parallel) {
    for (const int depth : options.n_depth) {
      for (const int n : options.n_prompt) {
        if (n > 0) tests.push_back({n, 0, depth, n_parallel});
      }
      for (const int n : options.n_gen) {
        if (n > 0) tests.push_back({0, n, depth, n_parallel});
      }
    }
  }
  return tests;
}

StatusOr<std::unique_ptr<Workspace>> OpenBenchedModel(const BenchModelOptions& options) {
  if (options.has_limits && options.model.device_text != "cpu") {
    return Error(StatusCode::kInvalidArgument,
                 "--limits measures products of processors; without it the bandwidth of copies on "
                 "{} is measured",
                 options.model.device_text);
  }
  const bool random = !options.random_model.empty();
  if (random != options.model.model.empty()) {
    return Error(StatusCode::kInvalidArgument, "give one of -m DIR and --random-model CONFIG.json");
  }
  KVL_ASSIGN_OR_RETURN(
      auto workspace,
      random ? OpenRandomWorkspace(options.random_model, options.model, options.compression)
             : OpenWorkspace(options.model));
  workspace->weights().machine().backend().set_measures_waiting(options.tells_waiting);
  return workspace;
}

StatusOr<StepLimits> MeasureBandwidth(Workspace* workspace) {
  if (workspace->options().device.is_cpu()) {
    return MeasureStepLimits(workspace->threads(), workspace->isa(), /*with_products=*/false);
  }
  return MeasureDeviceLimits(&workspace->weights().machine());
}

Status RunModelBench(const BenchModelOptions& options) {
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenBenchedModel(options));
  std::vector<std::string> specs = options.model.kv;
  if (specs.empty()) specs = {"none"};
  std::vector<ModelBenchRow> rows;
  const std::vector<ModelBenchCase> tests = ListTests(options);
  std::optional<StepLimits> limits;
  if (!options.has_limits && !options.leaves_bandwidth && std::ranges::any_of(tests, Generates)) {
    KVL_ASSIGN_OR_RETURN(limits, MeasureBandwidth(workspace.get()));
  }
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const SpecModel spec_model, workspace->MakeModel(kv));
    if (options.has_limits) {  // again for every spec: they drift
      KVL_ASSIGN_OR_RETURN(limits, MeasureStepLimits(workspace->threads(), workspace->isa(),
                                                     /*with_products=*/true));
    }
    for (const std::string& schedule : options.schedules) {
      spec_model.model->set_schedule(ParseSchedule(schedule));
      for (const ModelBenchCase& test : tests) {
        KVL_ASSIGN_OR_RETURN(ModelBenchRow row,
                             BenchModel(spec_model.model.get(), kv, test, options.n_repetitions,
                                        workspace->kv_budget_bytes(), limits));
        row.schedule = schedule;
        row.tells_waiting = options.tells_waiting;
        rows.push_back(std::move(row));
      }
    }
  }
  if (options.model.json) {
    fmt::print("{}\n", ToJson(rows, workspace->device_name()).dump());
  } else {
    const std::string name =
        std::filesystem::path(options.random_model.empty() ? options.model.model
                                                           : options.random_model)
            .lexically_normal()
            .stem()
            .string();
    fmt::print("{}", ToMarkdown(rows, name, workspace->threads()->n_workers()));
  }
  return OkStatus();
}

void AddModelBench(CLI::App* bench, Verbs* verbs) {
  auto options = std::make_shared<BenchModelOptions>();
  CLI::App* verb = bench->add_subcommand("model", "Prompt and generation speed of a whole model");
  verb->footer(
      fmt::format("With --random-model: {}\n\nExample: kvlathe bench model -m models/lathe-nano -p "
                  "512 -n 64 -d 0,256 --kv none",
                  kDrawnRanks));
  AddModelOptions(verb, &options->model);
  verb->get_option("--model")->required(false);
  AddCacheOptions(verb, &options->model, "none");
  AddRankOptions(verb, verbs, &options->model, [options] { return OpenBenchedModel(*options); });
  verb->remove_option(verb->get_option("--schedule"));
  verb->add_option("--schedule", options->schedules, "how attention is split over threads, a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"static", "lpt", "balanced"}))
      ->capture_default_str();
  verb->add_option("--random-model", options->random_model,
                   "random weights in the shape of a config.json");
  verb->add_option(
          "--compression", options->compression,
          "with --random-model: the weights decide what --kv dmc merges, so many positions "
          "into an entry on average, more in some heads than in others")
      ->needs("--random-model")
      ->check(CLI::Range(1.0, 64.0));
  verb->add_option("-p,--n-prompt", options->n_prompt, "prompt tokens, a list")->delimiter(',');
  verb->add_option("-n,--n-gen", options->n_gen, "generated tokens, a list")->delimiter(',');
  verb->add_option("-d,--n-depth", options->n_depth, "tokens already in the cache, a list")
      ->delimiter(',');
  verb->add_option("--parallel", options->n_parallel,
                   "sequences at the same time, a list, also -np")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  verb->add_option("-r,--repetitions", options->n_repetitions, "counted runs")
      ->check(CLI::Range(1, 1000));
  CLI::Option* const limits = verb->add_flag(
      "--limits", options->has_limits,
      "measure the machine's limits as well (1 GiB of memory), and what share generation "
      "reaches");
  verb->add_flag("--no-bandwidth", options->leaves_bandwidth,
                 "do not measure the read bandwidth (2 s, 1 GiB of memory) that generation is "
                 "held against")
      ->excludes(limits);
  verb->add_flag("--tell-waiting", options->tells_waiting,
                 "with --tp: tell waiting for other ranks from messages, which costs each sum over "
                 "ranks one message more");
  verb->callback(
      [verbs, options] { verbs->chosen = [options] { return RunModelBench(*options); }; });
}

struct BenchSchedulerOptions {
  ModelOptions model;
  SchedulerBenchOptions bench;
};

Status RunSchedulerBench(const BenchSchedulerOptions& options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument, "bench scheduler takes one --kv");
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  KVL_ASSIGN_OR_RETURN(
      const SpecModel spec_model,
      workspace->MakeModel(options.model.kv.empty() ? "none" : options.model.kv.front()));
  KVL_ASSIGN_OR_RETURN(
      const SchedulerBenchReport report,
      BenchScheduler(spec_model.model.get(), options.bench, workspace->kv_budget_bytes()));
  if (options.model.json) {
    fmt::print("{}\n", ToJson(report).dump());
  } else {
    fmt::print("{}", ToText(report));
  }
  return OkStatus();
}

void AddSchedulerBench(CLI::App* bench, Verbs* verbs) {
  auto options = std::make_shared<BenchSchedulerOptions>();
  CLI::App* verb = bench->add_subcommand(
      "scheduler", "What the engine adds to a decode step, and how soon an idle one begins");
  verb->footer("Example: kvlathe bench scheduler -m models/lathe-nano --parallel 16");
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("--parallel", options->bench.n_sequences, "sequences at the same time, also -np")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("-p,--n-prompt", options->bench.n_prompt, "prompt tokens of each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("-n,--n-steps", options->bench.n_steps, "decode steps that count")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->callback(
      [verbs, options] { verbs->chosen = [options] { return RunSchedulerBench(*options); }; });
}

struct BenchAttentionOptions {
  AttentionBenchOptions bench;
  ModelOptions model;  // its heads and what is calibrated of it, where it is given
  std::vector<std::string> kv;
  std::string device = "cpu";
  std::vector<std::string> phases = {"decode", "prefill"};
  int n_threads = 0;
  bool json = false;
};

// A cache with drawn ranks.
StatusOr<BenchCache> DrawnBenchCache(const Spec& spec, const std::string& kv,
                                     const AttentionBenchOptions& bench) {
  const RankOptions* const ranks = spec.basis() == nullptr ? nullptr : RanksOf(*spec.basis());
  const bool has_rate =
      (ranks != nullptr && ranks->has_rate()) || spec.basis_as<SvdOnlineOptions>() != nullptr;
  const SealingFacts sealing = FactsOf(spec.sealing());
  if (spec.basis() != nullptr && !has_rate && !sealing.splits_bits) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': bench attention without -m takes rate, or a ratio that chooses bits",
                 kv);
  }
  KVL_RETURN_IF_ERROR(CheckDrawnRanks(spec));
  const bool is_uniform = has_rate && ranks->choice == RankOptions::Choice::kUniform;
  const PlanParts parts = PartsOf(spec);
  const ModelFacts model = {.n_layers = 1,
                            .n_kv_heads = bench.n_kv_heads,
                            .head_dim = bench.head_dim,
                            .rope_dim = bench.head_dim};
  return BenchCache{kv,
                    has_rate ? ranks->value : 0,
                    parts.seal,
                    parts.retention,
                    sealing.splits_bits ? ranks->value : 0,
                    KeysOf(spec, model),
                    is_uniform};
}

StatusOr<BenchCache> BenchCacheOfModel(const Spec& spec, const std::string& kv,
                                       Workspace* workspace) {
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, workspace->planner().MakePlan(spec));
  const CacheLayout& layout = plan.layout();
  return BenchCache{.kv = kv,
                    .seal = layout.seal,
                    .retention = layout.retention,
                    .keys = layout.keys,
                    .of_model = layout};
}

StatusOr<BenchCache> BenchCacheOf(const std::string& kv, const AttentionBenchOptions& bench,
                                  Workspace* workspace) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
  KVL_RETURN_IF_ERROR(CheckSupported(spec));
  const bool shares_latents = HeadsPerLatent(spec.keys()) != 1;
  if (FactsOf(spec.sealing()).finds_bases || shares_latents) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': bench attention has no bases of a sequence and no latents that heads "
                 "share; bench model has",
                 kv);
  }
  if (workspace == nullptr) return DrawnBenchCache(spec, kv, bench);
  return BenchCacheOfModel(spec, kv, workspace);
}

Status RunAttention(BenchAttentionOptions options) {
  if (options.device != "cpu") {
    return Error(StatusCode::kInvalidArgument,
                 "--device {}: bench attention calls the kernels of processors; bench model has "
                 "the share of attention in steps on a GPU, and scripts/first_contact.sh a table "
                 "of attention alone",
                 options.device);
  }
  AttentionBenchOptions& bench = options.bench;
  KVL_ASSIGN_OR_RETURN(bench.isa, SelectIsa());
  bench.n_threads = options.n_threads > 0 ? options.n_threads : AvailableProcessors();
  std::unique_ptr<Workspace> workspace;
  if (!options.model.model.empty()) {
    options.model.kv = options.kv;
    options.model.n_threads = bench.n_threads;
    KVL_ASSIGN_OR_RETURN(workspace, OpenWorkspace(options.model));
    bench.n_heads = workspace->config().n_heads;
    bench.n_kv_heads = workspace->config().n_kv_heads;
    bench.head_dim = workspace->config().head_dim;
  } else {
    PrintNote(Note::Kind::kNote, NoteWithoutBf16(bench.isa));
  }
  if (!options.kv.empty()) bench.specs.clear();
  for (const std::string& kv : options.kv) {
    KVL_ASSIGN_OR_RETURN(BenchCache cache, BenchCacheOf(kv, bench, workspace.get()));
    bench.specs.push_back(std::move(cache));
  }
  workspace.reset();  // its memory is not the bench's
  bench.phases.clear();
  for (const std::string& phase : options.phases) {
    bench.phases.push_back(phase == "decode" ? BenchPhase::kDecode : BenchPhase::kPrefill);
  }
  KVL_ASSIGN_OR_RETURN(AttentionBenchReport report, RunAttentionBench(bench));
  report.is_of_model = !options.model.model.empty();
  if (options.json) {
    fmt::print("{}\n", ToJson(report).dump());
  } else {
    fmt::print("{}", ToMarkdown(report));
  }
  return OkStatus();
}

void AddAttentionBench(CLI::App* bench, Verbs* verbs) {
  auto options = std::make_shared<BenchAttentionOptions>();
  AttentionBenchOptions& o = options->bench;
  CLI::App* verb =
      bench->add_subcommand("attention", "Attention on compressed blocks, without a model");
  verb->footer(fmt::format(
      "{} With -m they are those of the model. Attention alone is timed: sealing, which a "
      "quantizer does once for every position, is "
      "part of bench model.\n\nExample: kvlathe bench attention --contexts 8192,32768 --kv none "
      "--kv "
      "'fdc(rate=0.5)'",
      kDrawnRanks));
  verb->add_option("--kv", options->kv, "caches (default: none and fdc(rate=0.5))")->take_all();
  verb->add_option("-c,--ctx-size,--contexts", o.contexts, "entries in the cache, a list")
      ->delimiter(',');
  verb->add_option("--phases", options->phases, "decode, prefill")
      ->delimiter(',')
      ->check(CLI::IsMember({"decode", "prefill"}));
  CLI::Option* const model =
      verb->add_option("-m,--model", options->model.model,
                       "a model whose heads, ranks and bits caches have, in place of drawn ones");
  verb->add_option("--basis", options->model.basis, "statistics of the model, from calibrate")
      ->needs(model);
  verb->add_option("--n-heads", o.n_heads, "query heads")->capture_default_str()->excludes(model);
  verb->add_option("--n-kv-heads", o.n_kv_heads, "KV heads")
      ->capture_default_str()
      ->excludes(model);
  verb->add_option("--head-dim", o.head_dim, "channels of a head")
      ->capture_default_str()
      ->excludes(model);
  verb->add_option("--layers", o.n_layers,
                   "layers of a pass of decode (default: as many as read 1 GiB); few of short "
                   "contexts stay in the processor's caches, and the limit is that of products")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--prefill-tokens", o.prefill_tokens, "query tokens of prefill")
      ->capture_default_str();
  verb->add_option("-r,--repetitions", o.n_repetitions, "runs, the best counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddDeviceOption(verb, &options->device);
  verb->add_option("-t,--threads", options->n_threads, "worker threads")
      ->check(CLI::Range(1, 1024));
  verb->add_option("-s,--seed", o.seed, "seed of ranks and rows")->capture_default_str();
  verb->add_option("--schedule", o.schedules,
                   "how attention is split over threads, a list: as bench plan has them")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kPlanSchedules), std::end(kPlanSchedules))));
  verb->add_option("--length-ratio", o.length_ratio,
                   "heads hold from context / ratio to context entries")
      ->capture_default_str();
  verb->add_flag("--scattered", o.scattered_blocks, "blocks anywhere in memory, the worst case");
  verb->add_flag("--json", options->json, "one JSON object");
  verb->callback(
      [verbs, options] { verbs->chosen = [options] { return RunAttention(*options); }; });
}

struct BenchPlanOptions {
  PlanBenchOptions bench;
  bool json = false;
};

Status RunPlan(BenchPlanOptions options) {
  KVL_ASSIGN_OR_RETURN(options.bench.isa, SelectIsa());
  KVL_ASSIGN_OR_RETURN(const PlanBenchReport report, RunPlanBench(options.bench));
  if (options.json) {
    fmt::print("{}\n", ToJson(report).dump());
  } else {
    fmt::print("{}", ToMarkdown(report));
  }
  return OkStatus();
}

void AddPlanBench(CLI::App* bench, Verbs* verbs) {
  auto options = std::make_shared<BenchPlanOptions>();
  CLI::App* verb =
      bench->add_subcommand("plan", "How evenly attention is shared among workers, by schedule");
  verb->footer("Example: kvlathe bench plan --workers 8,132");
  verb->add_option("--workers", options->bench.worker_counts, "numbers of workers, a list")
      ->delimiter(',');
  verb->add_option("--schedule", options->bench.schedules,
                   "schedules to show, a list: static, lpt and balanced of the planner; flash as "
                   "FlashAttention-2 has it, zack as ZACK and FDC publish it (default: all)")
      ->delimiter(',');
  verb->add_option("--draws", options->bench.n_draws, "draws of ranks and lengths for every row")
      ->capture_default_str();
  verb->add_option("-s,--seed", options->bench.seed, "seed of the first draw")
      ->capture_default_str();
  verb->add_flag("--json", options->json, "one JSON object");
  verb->callback([verbs, options] { verbs->chosen = [options] { return RunPlan(*options); }; });
}

}  // namespace

void AddBenchVerb(Verbs* verbs) {
  CLI::App* bench = verbs->app->add_subcommand("bench", "Speed, as ratios to the machine's limits");
  bench->require_subcommand(1);
  AddAttentionBench(bench, verbs);
  AddModelBench(bench, verbs);
  AddPlanBench(bench, verbs);
  AddSchedulerBench(bench, verbs);
  AddServeBench(bench, verbs);
}

}  // namespace kvlathe
