// kvlathe retrofit dmc: teaches a model which positions of its KV cache to merge.
#include <fmt/format.h>

#include <vector>

#include "io/files.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/model_directory.h"
#include "training_run.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct DmcOptions {
  TrainingRunOptions run;
  std::string model;  // that is retrofitted
  std::string stage;  // empty: all
  double compression = 0;
};

// Checkpoints are where the next stage looks for them.
std::string StageDirectory(const DmcOptions& options, const TrainingRecipe& recipe,
                           DmcStage stage) {
  const std::string name = stage == DmcStage::kSolidify
                               ? fmt::format("cr-{:g}", recipe.dmc->compression)
                               : NameOf(stage);
  return options.run.out + "/" + name;
}

// Where the ramp leaves what it is at a CR: a model directory of this name, and the checkpoint that
// `solidify` goes on from with ".pt" behind it.
std::string OnTheRamp(const DmcOptions& options, double compression) {
  return fmt::format("{}/ramp/cr-{:g}", options.run.out, compression);
}

// Where the first step of a stage takes its weights from.
Status Begin(const DmcOptions& options, const TrainingRecipe& recipe, DmcStage stage,
             Trainer* trainer) {
  if (stage == DmcStage::kZeroOut) return LoadWeights(options.model, trainer->mutable_decoder());
  const std::string from = stage == DmcStage::kRamp
                               ? options.run.out + "/zero-out/checkpoint.pt"
                               : OnTheRamp(options, recipe.dmc->compression) + ".pt";
  if (!FileExists(from)) {
    return Error(StatusCode::kNotFound, "{}: not there; {} begins where the stage before it ended",
                 from, NameOf(stage));
  }
  return trainer->StartFrom(from);
}

// Checkpoint and model of every CR that the ramp has just reached; that of its last CR behind its
// last step, as its target may have been there before.
Status SaveOnTheWay(const DmcOptions& options, const DmcRecipe& dmc, const Trainer& trainer) {
  std::vector<double> reached;
  if (!dmc.is_immediate) {
    const int64_t step = trainer.step();  // how many are done
    const double before = step > 1 ? dmc.TargetAt(DmcStage::kRamp, step - 2) : 1;
    const double now = dmc.TargetAt(DmcStage::kRamp, step - 1);
    for (const double compression : dmc.save_at) {
      const bool is_new = compression > before && compression <= now;
      if (is_new && compression < dmc.compression) reached.push_back(compression);
    }
  }
  if (trainer.is_done()) reached.push_back(dmc.compression);
  for (const double compression : reached) {
    const std::string place = OnTheRamp(options, compression);
    KVL_RETURN_IF_ERROR(trainer.SaveCheckpoint(place + ".pt"));
    KVL_RETURN_IF_ERROR(SaveTrainedModel(trainer, options.run.corpus, place));
  }
  return OkStatus();
}

void PrintCompression(const Trainer& trainer, const DmcRecipe& dmc, DmcStage stage) {
  const double kept = trainer.curve().back().kept_share;
  if (kept <= 0) return;
  fmt::print("  CR {:.2f} in the last step, for a target of {:g}\n", 1 / kept,
             dmc.TargetAt(stage, trainer.step() - 1));
}

// False if somebody asked to stop before the stage was done.
StatusOr<bool> RunStage(const DmcOptions& options, const TrainingRecipe& whole,
                        const Corpus& corpus, Workers* workers, DmcStage stage) {
  const TrainingRecipe recipe = RecipeOfStage(whole, stage);
  KVL_ASSIGN_OR_RETURN(TrainerOptions trainer_options, MakeTrainerOptions(options.run, workers));
  trainer_options.dmc_stage = stage;
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                       Trainer::Create(&recipe, &corpus, trainer_options));
  KVL_RETURN_IF_ERROR(SetTeacher(options.run, recipe, options.model, trainer.get()));
  const std::string out = StageDirectory(options, recipe, stage);
  KVL_RETURN_IF_ERROR(MakeOutputDirectory(out));
  const std::string checkpoint = out + "/checkpoint.pt";
  if (FileExists(checkpoint)) {
    KVL_RETURN_IF_ERROR(trainer->LoadCheckpoint(checkpoint));
  } else {
    KVL_RETURN_IF_ERROR(Begin(options, recipe, stage, trainer.get()));
  }
  const bool was_done = trainer->is_done();
  if (trainer->step() > 0 && options.run.is_first_worker()) {
    fmt::print(stderr, "{}: {} step {}\n", NameOf(stage), was_done ? "done with" : "going on from",
               trainer->step());
  }
  if (!was_done) {
    const auto on_step = [&]() -> Status {
      KVL_RETURN_IF_ERROR(SaveAtSteps(*trainer, recipe.save_at_steps, options.run.corpus, out));
      return stage == DmcStage::kRamp ? SaveOnTheWay(options, *recipe.dmc, *trainer) : OkStatus();
    };
    KVL_RETURN_IF_ERROR(RunSteps(trainer.get(), options.run, workers, checkpoint,
                                 /*budget_seconds=*/0, recipe.total_tokens, on_step)
                            .status());
    if (options.run.is_first_worker()) {
      fmt::print("{}: ", out);
      PrintSummary(*trainer, options.run.profile);
      PrintCompression(*trainer, *recipe.dmc, stage);
    }
  }
  if (!options.run.is_first_worker()) return trainer->is_done();
  // Written even where the stage was done: whoever ended it may not have come to this.
  KVL_RETURN_IF_ERROR(SaveTrainedModel(*trainer, options.run.corpus, out));
  if (!trainer->is_done()) {
    fmt::print("stopped at {:.1f}% of {}; the same command goes on\n", 100 * trainer->progress(),
               NameOf(stage));
  }
  return trainer->is_done();
}

StatusOr<TrainingRecipe> ReadRecipe(const DmcOptions& options) {
  KVL_ASSIGN_OR_RETURN(const ModelConfig base, LoadModelConfig(options.model));
  KVL_ASSIGN_OR_RETURN(TrainingRecipe recipe, LoadRecipe(options.run.recipe, &base));
  if (!recipe.dmc.has_value()) {
    return Error(StatusCode::kInvalidArgument, "{}: its \"training\" has no \"dmc\"",
                 options.run.recipe);
  }
  if (options.compression > 0) recipe.dmc->compression = options.compression;
  return recipe;
}

Status Retrofit(const DmcOptions& options) {
  KVL_ASSIGN_OR_RETURN(const TrainingRecipe recipe, ReadRecipe(options));
  KVL_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Open(options.run.corpus));
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workers> workers, JoinWorkers(options.run));
  for (const DmcStage stage : {DmcStage::kZeroOut, DmcStage::kRamp, DmcStage::kSolidify}) {
    if (!options.stage.empty() && options.stage != NameOf(stage)) continue;
    KVL_ASSIGN_OR_RETURN(const bool is_done,
                         RunStage(options, recipe, corpus, workers.get(), stage));
    if (!is_done) return OkStatus();
  }
  return OkStatus();
}

}  // namespace

void AddDmcVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<DmcOptions>();
  CLI::App* verb = verbs->Add(
      "dmc", "Teach a model to merge entries of its cache; interrupted, the same command goes on",
      "kvlathe retrofit dmc -m models/lathe-small --recipe recipe.json --corpus corpus "
      "--out run",
      [options] { return Retrofit(*options); });
  AddTrainingRunOptions(verb, &options->run);
  verb->add_option("-m,--model", options->model, "model directory or .gguf file to retrofit")
      ->required();
  verb->add_option("--stage", options->stage,
                   "one stage alone; without it all, one behind the other")
      ->check(CLI::IsMember({"zero-out", "ramp", "solidify"}));
  verb->add_option("--compression", options->compression,
                   "CR in place of the recipe's; of `--stage solidify`, one of its save_at")
      ->check(CLI::Range(1.01, 1000.0));
}

}  // namespace kvlathe
