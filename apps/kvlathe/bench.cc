// kvlathe bench: attention against the machine's limits; whole models in llama-bench's terms.
#include <fmt/format.h>

#include <filesystem>

#include "evaluation/attention_bench.h"
#include "evaluation/model_bench.h"
#include "workspace.h"

namespace kvlathe {
namespace {

struct BenchModelOptions {
  ModelOptions model;
  std::string random_model;
  std::vector<int> n_prompt = {512};
  std::vector<int> n_gen = {128};
  std::vector<int> n_depth = {0};
  int n_parallel = 1;
  int n_repetitions = 5;
};

Status RunModelBench(const BenchModelOptions& options) {
  const bool random = !options.random_model.empty();
  if (random != options.model.model.empty()) {
    return Error(StatusCode::kInvalidArgument, "give one of -m DIR and --random-model CONFIG.json");
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, random ? Workspace::OpenRandom(options.random_model, options.model)
                                              : Workspace::Open(options.model));
  std::vector<std::string> specs = options.model.kv;
  if (specs.empty()) specs = {"none"};
  std::vector<ModelBenchRow> rows;
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const SpecModel spec_model, workspace->MakeModel(kv));
    const auto measure = [&](ModelBenchCase test) -> Status {
      KVL_ASSIGN_OR_RETURN(ModelBenchRow row,
                           BenchModel(spec_model.model.get(), kv, test, options.n_repetitions,
                                      workspace->kv_budget_bytes()));
      rows.push_back(std::move(row));
      return OkStatus();
    };
    for (int depth : options.n_depth) {
      for (int n : options.n_prompt) {
        if (n > 0) KVL_RETURN_IF_ERROR(measure({n, 0, depth, options.n_parallel}));
      }
      for (int n : options.n_gen) {
        if (n > 0) KVL_RETURN_IF_ERROR(measure({0, n, depth, options.n_parallel}));
      }
    }
  }
  if (options.model.json) {
    fmt::print("{}\n", ToJson(rows).dump());
  } else {
    const std::string name = std::filesystem::path(random ? options.random_model : options.model.model)
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
  verb->footer("Example: kvlathe bench model -m models/lathe-nano -p 512 -n 64 -d 0,256 --kv none");
  AddModelOptions(verb, &options->model);
  verb->get_option("--model")->required(false);
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("--random-model", options->random_model, "random weights in the shape of a config.json");
  verb->add_option("-p,--n-prompt", options->n_prompt, "prompt tokens, a list")->delimiter(',');
  verb->add_option("-n,--n-gen", options->n_gen, "generated tokens, a list")->delimiter(',');
  verb->add_option("-d,--n-depth", options->n_depth, "tokens already in the cache, a list")->delimiter(',');
  verb->add_option("--np,--parallel", options->n_parallel, "sequences at the same time")
      ->check(CLI::Range(1, 4096));
  verb->add_option("-r,--repetitions", options->n_repetitions, "counted runs")->check(CLI::Range(1, 1000));
  verb->callback([verbs, options] { verbs->chosen = [options] { return RunModelBench(*options); }; });
}

}  // namespace

void AddBenchVerb(Verbs* verbs) {
  CLI::App* bench = verbs->app->add_subcommand("bench", "Speed, as ratios to the machine's limits");
  bench->require_subcommand(1);
  AddModelBench(bench, verbs);
}

}  // namespace kvlathe
