// kvlathe retrofit pretrain: trains a model from random weights, or goes on from a checkpoint.
#include <fmt/format.h>

#include "io/files.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/model_directory.h"
#include "training_run.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct PretrainOptions {
  TrainingRunOptions run;
  std::string init;  // a model directory to start from
  double minutes = 0;
};

// The model is the recipe's, or the one that the run starts from.
StatusOr<TrainingRecipe> ReadRecipe(const PretrainOptions& options) {
  if (options.init.empty()) return LoadRecipe(options.run.recipe);
  KVL_ASSIGN_OR_RETURN(const ModelConfig base, LoadModelConfig(options.init));
  return LoadRecipe(options.run.recipe, &base);
}

Status Pretrain(const PretrainOptions& options) {
  const TrainingRunOptions& run = options.run;
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workers> workers, JoinWorkers(run));
  KVL_ASSIGN_OR_RETURN(TrainerOptions trainer_options, MakeTrainerOptions(run, workers.get()));
  trainer_options.budget_seconds = 60 * options.minutes;
  KVL_ASSIGN_OR_RETURN(const TrainingRecipe recipe, ReadRecipe(options));
  KVL_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Open(run.corpus));
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                       Trainer::Create(&recipe, &corpus, trainer_options));
  KVL_RETURN_IF_ERROR(SetTeacher(run, recipe, /*usual=*/"", trainer.get()));
  KVL_RETURN_IF_ERROR(MakeOutputDirectory(run.out));
  const std::string checkpoint = run.out + "/checkpoint.pt";
  if (FileExists(checkpoint)) {
    KVL_RETURN_IF_ERROR(trainer->LoadCheckpoint(checkpoint));
    if (run.is_first_worker())
      fmt::print(stderr, "going on from step {} of {}\n", trainer->step(), checkpoint);
  } else if (!options.init.empty()) {
    KVL_RETURN_IF_ERROR(LoadWeights(options.init, trainer->mutable_decoder()));
  }
  if (trainer->is_done()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: this run is done; remove the checkpoint to repeat it", checkpoint);
  }
  const auto on_step = [&] {
    return SaveAtSteps(*trainer, recipe.save_at_steps, run.corpus, run.out);
  };
  KVL_ASSIGN_OR_RETURN(const bool is_done,
                       RunSteps(trainer.get(), run, workers.get(), checkpoint,
                                trainer_options.budget_seconds, recipe.total_tokens, on_step));
  if (!run.is_first_worker()) return OkStatus();
  KVL_RETURN_IF_ERROR(SaveTrainedModel(*trainer, run.corpus, run.out));
  PrintSummary(*trainer, run.profile);
  if (!is_done) {
    fmt::print("stopped at {:.1f}%; the same command goes on from {}\n", 100 * trainer->progress(),
               checkpoint);
  }
  return OkStatus();
}

}  // namespace

void AddPretrainVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<PretrainOptions>();
  CLI::App* verb =
      verbs->Add("pretrain", "Train a model on a corpus; interrupted, the same command goes on",
                 "kvlathe retrofit pretrain --recipe models/lathe-small/recipe-4.json --corpus "
                 "corpus --out run",
                 [options] { return Pretrain(*options); });
  AddTrainingRunOptions(verb, &options->run);
  verb->add_option("--init", options->init,
                   "model directory or .gguf file whose weights the run starts from; "
                   "its shape where the recipe has no model");
  verb->add_option("--minutes", options->minutes,
                   "time budget: the schedule ends with it instead of with total_tokens")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace kvlathe
