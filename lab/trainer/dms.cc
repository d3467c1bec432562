// kvlathe retrofit dms: teaches heads which entries of a model's KV cache may leave it.
#include <fmt/format.h>

#include <filesystem>

#include "io/files.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/dms/dms_heads.h"
#include "training/retrofit/model_directory.h"
#include "training_run.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct DmsOptions {
  TrainingRunOptions run;
  std::string model;
  std::string heads;  // to begin with; empty: they are fitted
};

// What the engine looks for: the model's name with .dms.safetensors.
std::string HeadsIn(const std::string& directory, const DmsOptions& options) {
  std::filesystem::path model(options.model);
  if (!model.has_filename()) model = model.parent_path();
  return fmt::format("{}/{}.dms.safetensors", directory, model.stem().string());
}

// The heads as they are now, with the offset that belongs to them.
Status WriteHeads(const Trainer& trainer, const DmsOptions& options, const std::string& directory) {
  KVL_ASSIGN_OR_RETURN(const DmsRecipe calibrated, trainer.CalibratedDms());
  KVL_RETURN_IF_ERROR(MakeOutputDirectory(directory));
  const std::string path = HeadsIn(directory, options);
  KVL_RETURN_IF_ERROR(WriteDmsHeads(trainer.decoder(), calibrated, path));
  fmt::print("{}: {} steps, offset {:.3f}\n", path, trainer.step(), calibrated.offset);
  std::fflush(stdout);
  return OkStatus();
}

Status Begin(const DmsOptions& options, const DmsRecipe& dms, Trainer* trainer) {
  if (!options.heads.empty()) return ReadDmsHeads(options.heads, dms, trainer->mutable_decoder());
  const Stopwatch watch;
  KVL_RETURN_IF_ERROR(trainer->FitDmsHeads([&](int64_t n_done, int64_t n) {
    fmt::print(stderr, "measured {} of {} sequences, {:.0f} s\n", n_done, n, watch.Seconds());
  }));
  return WriteHeads(*trainer, options, options.run.out + "/step-0");
}

Status Train(const DmsOptions& options) {
  KVL_ASSIGN_OR_RETURN(const ModelConfig base, LoadModelConfig(options.model));
  KVL_ASSIGN_OR_RETURN(const TrainingRecipe recipe, LoadRecipe(options.run.recipe, &base));
  if (!recipe.dms.has_value()) {
    return Error(StatusCode::kInvalidArgument, "{}: its \"training\" has no \"dms\"",
                 options.run.recipe);
  }
  KVL_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Open(options.run.corpus));
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workers> workers, JoinWorkers(options.run));
  KVL_ASSIGN_OR_RETURN(const TrainerOptions trainer_options,
                       MakeTrainerOptions(options.run, workers.get()));
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                       Trainer::Create(&recipe, &corpus, trainer_options));
  KVL_RETURN_IF_ERROR(SetTeacher(options.run, recipe, "", trainer.get()));
  KVL_RETURN_IF_ERROR(LoadWeights(options.model, trainer->mutable_decoder()));
  KVL_RETURN_IF_ERROR(MakeOutputDirectory(options.run.out));
  const std::string checkpoint = options.run.out + "/checkpoint.pt";
  if (FileExists(checkpoint)) {
    KVL_RETURN_IF_ERROR(trainer->LoadCheckpoint(checkpoint));
    fmt::print(stderr, "going on from step {}\n", trainer->step());
  } else {
    KVL_RETURN_IF_ERROR(Begin(options, *recipe.dms, trainer.get()));
    if (options.run.is_first_worker()) KVL_RETURN_IF_ERROR(trainer->SaveCheckpoint(checkpoint));
  }
  if (!trainer->is_done()) {
    const auto on_step = [&]() -> Status {
      for (const int64_t step : recipe.save_at_steps) {
        if (step != trainer->step()) continue;
        return WriteHeads(*trainer, options, fmt::format("{}/step-{}", options.run.out, step));
      }
      return OkStatus();
    };
    KVL_RETURN_IF_ERROR(RunSteps(trainer.get(), options.run, workers.get(), checkpoint,
                                 /*budget_seconds=*/0, recipe.total_tokens, on_step)
                            .status());
    if (options.run.is_first_worker()) PrintSummary(*trainer, options.run.profile);
  }
  if (!options.run.is_first_worker()) return OkStatus();
  if (!trainer->is_done()) {
    fmt::print("stopped at {:.1f}%; the same command goes on\n", 100 * trainer->progress());
  }
  KVL_RETURN_IF_ERROR(WriteHeads(*trainer, options, options.run.out));
  return WriteLossCurve(trainer->curve(), "dms", options.run.out);
}

}  // namespace

void AddDmsVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<DmsOptions>();
  CLI::App* verb = verbs->Add(
      "dms",
      "Teach heads which entries of a cache may leave it; interrupted, the same command goes on",
      "kvlathe retrofit dms -m models/lathe-small --recipe recipe.json --corpus corpus --out run",
      [options] { return Train(*options); });
  AddTrainingRunOptions(verb, &options->run);
  verb->add_option("-m,--model", options->model,
                   "model directory or .gguf file, whose weights stay")
      ->required();
  verb->add_option("--heads", options->heads,
                   "file of heads that the run begins with; without it they are fitted");
}

}  // namespace kvlathe
