// kvlathe tune: the smallest caches that keep an accuracy, measured on tasks and texts, into a
// profile.
#include "tuning/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/clock.h"
#include "base/random.h"
#include "calibration/fingerprint.h"
#include "evaluation/metrics.h"
#include "io/atomic_file.h"
#include "io/file_lock.h"
#include "io/files.h"
#include "io/model_place.h"
#include "kvlathe/eval/task_choice.h"
#include "kvlathe/open_workspace.h"
#include "runtime/profile_file.h"
#include "runtime/shared_texts.h"
#include "runtime/spec_models.h"
#include "tuning/tune_method.h"

namespace kvlathe {
namespace {

struct TuneOptions {
  ModelOptions model;
  TaskChoiceOptions task;
  std::string perplexity_text;
  double accuracy = 0.99;
  std::string output;
};

// What a cache is judged by, ready to run.
struct TuneTests {
  std::vector<TuneGoal> goals;  // the tasks, then the text
  std::vector<ReadyTask> tasks;
  std::optional<EvaluationText> text;
  std::vector<int32_t> latency_window;  // random tokens that fill the context
};

StatusOr<ReadyTask> AddTask(ChosenTask chosen, const TaskChoiceOptions& options,
                            const Workspace& workspace, TuneTests* tests) {
  KVL_ASSIGN_OR_RETURN(ReadyTask task, MakeReady(std::move(chosen), options, workspace));
  Fingerprint examples;
  for (const PreparedExample& example : task.prepared.examples) {
    examples.Add(example.text.prompt);
    for (const std::string& reference : example.text.references) examples.Add(reference);
    for (const std::string& choice : example.text.choices) examples.Add(choice);
  }
  tests->goals.push_back(
      {task.name, std::string(MetricName(task.prepared.metric)),
       fmt::format("{} examples {}", task.prepared.examples.size(), examples.Hex())});
  return task;
}

Status AddText(const std::string& path, const Workspace& workspace, TuneTests* tests) {
  const Tokenizer& tokenizer = workspace.tokenizer();
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace.TokenizeFile(path));
  const auto bytes_of = [&](int32_t id) {
    return static_cast<int>(tokenizer.TokenBytes(id).size());
  };
  KVL_ASSIGN_OR_RETURN(tests->text, CutIntoWindows(ids, bytes_of, workspace.leading_bos(),
                                                   workspace.window_tokens()));
  tests->goals.push_back(
      {fmt::format("perplexity {}", std::filesystem::path(path).filename().string()), "perplexity",
       fmt::format("{} tokens {}", tests->text->n_scored(), TokenHash(ids))});
  return OkStatus();
}

StatusOr<TuneTests> MakeTests(std::vector<ChosenTask> chosen, const TuneOptions& options,
                              const Workspace& workspace) {
  TuneTests tests;
  for (ChosenTask& task : chosen) {
    KVL_ASSIGN_OR_RETURN(ReadyTask ready,
                         AddTask(std::move(task), options.task, workspace, &tests));
    tests.tasks.push_back(std::move(ready));
  }
  if (!options.perplexity_text.empty()) {
    KVL_RETURN_IF_ERROR(AddText(options.perplexity_text, workspace, &tests));
  }
  Random random(1);
  for (int i = 0; i < workspace.context_tokens(); ++i) {
    tests.latency_window.push_back(
        static_cast<int32_t>(random.Below(workspace.config().vocab_size)));
  }
  return tests;
}

class ModelEvaluator : public TuneEvaluator {
 public:
  ModelEvaluator(Workspace* workspace, const TuneTests* tests)
      : workspace_(workspace), tests_(tests) {}

  StatusOr<double> Size(const std::string& kv) override { return workspace_->FractionOf(kv); }

  StatusOr<std::optional<double>> Expect(const std::string& kv) override {
    KVL_ASSIGN_OR_RETURN(const std::optional<double> kl, PredictedKlOf(workspace_, kv));
    return kl.has_value() ? std::optional<double>(std::exp(-*kl)) : std::nullopt;
  }

  StatusOr<Measurement> Measure(const std::string& kv, std::span<const double> limits) override {
    Measurement measured;
    KVL_ASSIGN_OR_RETURN(const SpecModel spec_model, workspace_->MakeModel(kv));
    Model* const model = spec_model.model.get();
    const int64_t budget = workspace_->kv_budget_bytes();
    for (size_t g = 0; g < tests_->tasks.size(); ++g) {
      const ReadyTask& task = tests_->tasks[g];
      const double least = limits.empty() ? 0 : limits[g];
      KVL_ASSIGN_OR_RETURN(const TaskResult result,
                           RunTask(model, workspace_->tokenizer(), task.prepared, budget,
                                   Named(fmt::format("{} with {}", task.name, kv)), least));
      measured.scores.push_back({result.score, result.score_stderr, result.kv_fraction});
      const bool is_last = g + 1 == tests_->goals.size();
      measured.is_cut_short = result.gave_up || (result.score < least && !is_last);
      if (measured.is_cut_short) return measured;
    }
    if (tests_->text.has_value()) {
      KVL_ASSIGN_OR_RETURN(const std::vector<Quality> qualities,
                           MeasureQuality({&model, 1}, *tests_->text, budget, workspace_->threads(),
                                          Named(fmt::format("perplexity with {}", kv))));
      measured.scores.push_back({qualities[0].perplexity, 0, qualities[0].kv_fraction});
    }
    KVL_ASSIGN_OR_RETURN(const Latency latency,
                         MeasureLatency(model, tests_->latency_window, budget,
                                        /*n_repetitions=*/1));
    measured.tbt_ms = latency.tbt_ms;
    return measured;
  }

 private:
  Progress Named(const std::string& what) const {
    const Progress terminal = workspace_->progress();
    if (!terminal) return nullptr;
    return [terminal, what](const std::string&, double fraction) { terminal(what, fraction); };
  }

  Workspace* workspace_;
  const TuneTests* tests_;
};

// What was measured before, if the file is there and was measured in the same way.
StatusOr<Profile> LoadOrBegin(const std::string& path, Profile fresh) {
  if (!FileExists(path)) return fresh;
  KVL_ASSIGN_OR_RETURN(Profile kept, ReadProfile(path));
  const char* difference = kept.model_hash != fresh.model_hash ? "another model"
                           : kept.settings != fresh.settings   ? "another context, dtype or basis"
                           : kept.goals != fresh.goals         ? "other tasks or texts"
                                                               : nullptr;
  if (difference == nullptr) return kept;
  return Error(StatusCode::kInvalidArgument,
               "{}: this profile was measured with {}; give another --out, or delete it", path,
               difference);
}

Status CreateFolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return Error(StatusCode::kInternal, "{}: {}", folder.string(), error.message());
  return AtomicFile::Create(path).status();  // whether it can be written; removed again
}

StatusOr<std::string> OutputOf(const TuneOptions& options, const Workspace& workspace) {
  const std::string path = options.output.empty() ? KeptProfilePath(workspace) : options.output;
  if (path.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "neither XDG_CACHE_HOME nor HOME is set; give --out FILE");
  }
  KVL_RETURN_IF_ERROR(CreateFolderOf(path));
  return path;
}

Profile FreshProfile(const Workspace& workspace, const TuneTests& tests) {
  const OpenOptions& options = workspace.options();
  std::string basis = options.basis;
  if (basis.empty() && FileExists(BesideModel(options.model, "basis.safetensors")))
    basis = "the model's";
  Profile profile;
  profile.model_hash = workspace.model_hash();
  profile.settings = fmt::format(
      "context {}, {}, {}, basis {}", workspace.context_tokens(), RowTypeName(options.row_type),
      workspace.config().DescribePositions(), basis.empty() ? "calibrated" : basis);
  profile.goals = tests.goals;
  return profile;
}

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

// All methods of a search are measured with statistics of one calibration.
Status ExpectMethods(const TuneJob& job, Workspace* workspace) {
  std::vector<std::string> methods = job.methods;
  if (methods.empty()) {
    for (const auto& [name, axis] : DefaultMethods()) methods.emplace_back(name);
  }
  for (const std::string& text : methods) {
    KVL_ASSIGN_OR_RETURN(const TuneMethod method, ParseMethod(text, job.accuracy));
    workspace->Expect(method.question);
  }
  return OkStatus();
}

Status RunTune(TuneOptions options) {
  KVL_ASSIGN_OR_RETURN(std::vector<ChosenTask> chosen, ChooseTasks(options.task));
  if (chosen.empty() && options.perplexity_text.empty()) {
    KVL_ASSIGN_OR_RETURN(options.perplexity_text, TextOfModel(options.model.model, "sample.txt"));
  }
  TuneJob job;
  job.accuracy = options.accuracy;
  job.methods = std::move(options.model.kv);  // methods, which no cache can be made of
  options.model.kv.clear();
  for (const std::string& method : job.methods) {
    KVL_RETURN_IF_ERROR(ParseMethod(method, job.accuracy).status());
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  KVL_RETURN_IF_ERROR(ExpectMethods(job, workspace.get()));
  KVL_ASSIGN_OR_RETURN(const std::string path, OutputOf(options, *workspace));
  KVL_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(path));
  KVL_ASSIGN_OR_RETURN(const TuneTests tests, MakeTests(std::move(chosen), options, *workspace));
  KVL_ASSIGN_OR_RETURN(Profile profile, LoadOrBegin(path, FreshProfile(*workspace, tests)));
  size_t n_shown = profile.points.size();
  if (n_shown > 0) fmt::print(stderr, "{}: going on from {} points\n", path, n_shown);
  ModelEvaluator evaluator(workspace.get(), &tests);
  job.evaluator = &evaluator;
  job.on_method = [](const std::string& method) { fmt::print(stderr, "{}\n", method); };
  job.save = [&](const Profile& p) -> Status {
    KVL_RETURN_IF_ERROR(WriteProfile(p, path));
    ShowNewPoints(p, job.accuracy, &n_shown);
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(Tune(job, &profile));
  if (options.model.json) {
    fmt::print("{}\n", ToJson(profile).dump());
  } else {
    PrintResult(profile, job.accuracy, path);
    KVL_RETURN_IF_ERROR(PrintPredictions(profile, job.accuracy, workspace.get()));
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
  verb->add_option("--accuracy", options->accuracy,
                   "share of the uncompressed model's scores to keep on every task")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  AddTaskChoiceOptions(verb, &options->task);
  verb->add_option("--perplexity", options->perplexity_text,
                   "text whose perplexity may grow by 1 / accuracy (default without --task: the "
                   "model's sample.txt)");
  verb->add_option("-o,--out", options->output,
                   "profile to write, or to go on with (default: kept where --kv finds it)");
}

}  // namespace kvlathe
