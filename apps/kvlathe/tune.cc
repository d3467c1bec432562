// kvlathe tune: the smallest caches that keep an accuracy, measured on tasks and texts, into a
// profile.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kvlathe/eval/task_options.h"
#include "kvlathe/open_workspace.h"
#include "runtime/measuring/tuning_run.h"
#include "runtime/spec_models.h"
#include "tuning/tune_method.h"

namespace kvlathe {
namespace {

struct TuneOptions {
  ModelOptions model;
  TuningOptions tuning;
};

// One line on stderr for each new point.
void ShowNewPoints(const Profile& profile, double accuracy, size_t* n_shown) {
  for (; *n_shown < profile.points.size(); ++*n_shown) {
    const TunePoint& point = profile.points[*n_shown];
    const double kept = profile.AccuracyOf(point);
    const std::string_view verdict = point.is_cut_short ? " at best (too low)"
                                     : kept < accuracy  ? " (too low)"
                                                        : "";
    fmt::print(stderr, "{:>4}  {}: {:.2f}%, accuracy {:.4f}{}\n", *n_shown + 1, point.kv,
               100 * point.kv_fraction, kept, verdict);
  }
}

void PrintResult(const Profile& profile, double accuracy, const std::string& path) {
  const auto target = std::ranges::find(profile.targets, accuracy, &TunedTarget::accuracy);
  fmt::print("at least {} of the baseline's accuracy, smallest of each method:\n{}\n", accuracy,
             ToTable(profile, *target));
  fmt::print("no cache is smaller, more accurate and faster than one of these {}:\n",
             ParetoFront(profile).size());
  for (int i : ParetoFront(profile)) {
    const TunePoint& point = profile.points[i];
    fmt::print("{:>7.2f}%  accuracy {:.4f}  {:>8.3f} ms  {}\n", 100 * point.kv_fraction,
               profile.AccuracyOf(point), point.tbt_ms, point.kv);
  }
  fmt::print("\n{}: {} points, {} of them cut short\n", path, profile.points.size(),
             std::ranges::count_if(profile.points, &TunePoint::is_cut_short));
}

// What was predicted of the caches that a target's methods ended at.
Status PrintPredictions(const Profile& profile, double accuracy, Workspace* workspace) {
  const auto target = std::ranges::find(profile.targets, accuracy, &TunedTarget::accuracy);
  for (const TunedMethod& method : target->methods) {
    if (method.kv.empty()) continue;
    KVL_ASSIGN_OR_RETURN(const std::optional<double> kl, PredictedKlOf(workspace, method.kv));
    const auto point = std::ranges::find(profile.points, method.kv, &TunePoint::kv);
    if (!kl.has_value() || point == profile.points.end()) continue;
    fmt::print("{}: accuracy {:.4f}, predicted {:.4f}\n", method.kv, profile.AccuracyOf(*point),
               std::exp(-*kl));
  }
  return OkStatus();
}

Status RunTune(TuneOptions options) {
  KVL_ASSIGN_OR_RETURN(std::vector<ChosenTask> chosen, ChooseTasks(options.tuning.task));
  options.tuning.methods = std::move(options.model.kv);  // of which no cache can be made
  options.model.kv.clear();
  const double accuracy = options.tuning.accuracy;
  for (const std::string& method : options.tuning.methods) {
    KVL_RETURN_IF_ERROR(ParseMethod(method, accuracy).status());
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  size_t n_shown = 0;
  options.tuning.on_begun = [&](const Tuning& begun) {
    n_shown = begun.profile.points.size();
    if (n_shown > 0) fmt::print(stderr, "{}: going on from {} points\n", begun.path, n_shown);
  };
  options.tuning.on_method = [](const std::string& method) { fmt::print(stderr, "{}\n", method); };
  options.tuning.on_points = [&](const Profile& p) { ShowNewPoints(p, accuracy, &n_shown); };
  KVL_ASSIGN_OR_RETURN(const Tuning tuning,
                       RunTuning(workspace.get(), std::move(chosen), options.tuning));
  if (options.model.json) {
    fmt::print("{}\n", ToJson(tuning.profile).dump());
  } else {
    PrintResult(tuning.profile, accuracy, tuning.path);
    KVL_RETURN_IF_ERROR(PrintPredictions(tuning.profile, accuracy, workspace.get()));
  }
  return OkStatus();
}

}  // namespace

void AddTuneVerb(Verbs* verbs) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* verb = verbs->Add(
      "tune", "The smallest caches that keep an accuracy, into a profile for accuracy= in --kv",
      "kvlathe tune -m DIR --accuracy 0.99 --task passkey --perplexity novel.txt",
      [options] { return RunTune(*options); });
  options->model.exact_rows = true;  // what caches lose is not to drown in the rounding of rows
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "");
  verb->get_option("--kv")->description(
      "methods: specs without rate, keep or bits where these are searched for, as fdc+kivi "
      "(default: all, then compositions of the smallest of each axis)");
  verb->remove_option(verb->get_option("--profile"));
  verb->add_option("--accuracy", options->tuning.accuracy,
                   "share of the uncompressed model's scores to keep on every task")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  AddTaskChoiceOptions(verb, &options->tuning.task);
  verb->add_option("--perplexity", options->tuning.perplexity_text,
                   "text whose perplexity may grow by 1 / accuracy (default without --task: the "
                   "model's sample.txt)");
  verb->add_option("-o,--out", options->tuning.output,
                   "profile to write, or to go on with (default: kept where --kv finds it)");
}

}  // namespace kvlathe
