#include "runtime/measuring/tuning_run.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "base/random.h"
#include "calibration/fingerprint.h"
#include "evaluation/metrics.h"
#include "io/atomic_file.h"
#include "io/file_lock.h"
#include "io/files.h"
#include "io/model_place.h"
#include "runtime/profile_file.h"
#include "runtime/shared_texts.h"
#include "runtime/spec_models.h"
#include "tuning/tune_method.h"

namespace kvlathe {
namespace {

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

StatusOr<TuneTests> MakeTests(std::vector<ChosenTask> chosen, const TuningOptions& options,
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

StatusOr<std::string> ProfilePathFor(const TuningOptions& options, const Workspace& workspace) {
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

}  // namespace

StatusOr<Tuning> RunTuning(Workspace* workspace, std::vector<ChosenTask> chosen,
                           TuningOptions options) {
  TuneJob job;
  job.accuracy = options.accuracy;
  job.methods = options.methods;
  if (chosen.empty() && options.perplexity_text.empty()) {
    KVL_ASSIGN_OR_RETURN(options.perplexity_text,
                         TextOfModel(workspace->options().model, "sample.txt"));
  }
  KVL_RETURN_IF_ERROR(ExpectMethods(job, workspace));
  Tuning tuning;
  KVL_ASSIGN_OR_RETURN(tuning.path, ProfilePathFor(options, *workspace));
  KVL_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(tuning.path));
  KVL_ASSIGN_OR_RETURN(const TuneTests tests, MakeTests(std::move(chosen), options, *workspace));
  KVL_ASSIGN_OR_RETURN(tuning.profile, LoadOrBegin(tuning.path, FreshProfile(*workspace, tests)));
  if (options.on_begun) options.on_begun(tuning);
  ModelEvaluator evaluator(workspace, &tests);
  job.evaluator = &evaluator;
  job.on_method = options.on_method;
  job.save = [&](const Profile& profile) -> Status {
    KVL_RETURN_IF_ERROR(WriteProfile(profile, tuning.path));
    if (options.on_points) options.on_points(profile);
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(Tune(job, &tuning.profile));
  return tuning;
}

}  // namespace kvlathe
