// kvlathe compare: several specs on one model and text, in one table.
#include <fmt/format.h>

#include "kvlathe/open_workspace.h"
#include "runtime/measuring/comparison_run.h"
#include "runtime/shared_texts.h"

namespace kvlathe {
namespace {

struct CompareOptions {
  ModelOptions model;
  std::string text;
  std::vector<double> rates;
  bool without_latency = false;
};

Status Compare(CompareOptions options) {
  if (options.model.kv.empty()) {
    options.model.kv = {"none", "kivi(bits=4,group=64)", "lathe(ratio=4)", "lathe(ratio=6)"};
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  if (options.text.empty()) {
    KVL_ASSIGN_OR_RETURN(options.text, TextOfModel(workspace->options().model, "sample.txt"));
  }
  KVL_ASSIGN_OR_RETURN(const ComparisonRun run,
                       RunComparison(workspace.get(), {options.model.kv, options.text,
                                                       options.rates, !options.without_latency}));
  const Comparison& comparison = run.comparison;
  if (options.model.json) {
    fmt::print("{}\n", ToJson(comparison).dump());
  } else {
    fmt::print("{}: {} scored tokens of {}\n\n{}\n", comparison.model, comparison.n_tokens,
               comparison.text, ToTable(comparison));
    fmt::print("KL of tokens and windows, nats per token\n{}\n", ToTailsTable(comparison));
    fmt::print("KV bytes at a window's end, by part\n{}", ToPartsTable(comparison));
  }
  return OkStatus();
}

}  // namespace

void AddCompareVerb(Verbs* verbs) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* verb = verbs->Add(
      "compare", "Size, quality and speed of several caches on one model and text",
      "kvlathe compare -m models/lathe-nano --kv none --kv 'lathe(ratio=4)' --text novel.txt",
      [options] { return Compare(*options); });
  options->model.exact_rows = true;  // what caches lose is not to drown in the rounding of rows
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model,
                  "none, kivi(bits=4,group=64), lathe(ratio=4), lathe(ratio=6)");
  AddRankOptions(verb, verbs, &options->model, [options] { return OpenWorkspace(options->model); });
  verb->add_option("--rate", options->rates,
                   "share removed where --kv says resident=full, in the place of its own; repeats")
      ->allow_extra_args(false);
  verb->add_option(
      "--text", options->text,
      "text to evaluate on (default: the model's sample.txt, or a mixed one of 10,000 tokens)");
  verb->add_flag("--no-latency", options->without_latency,
                 "size and quality alone: time to first and between tokens are not measured");
}

}  // namespace kvlathe
