// The verbs that train have options, steps with progress and checkpoints, and what a run leaves in
// common.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "training/retrofit/trainer.h"

namespace kvlathe {

struct TrainingRunOptions {
  std::string recipe, corpus, out;
  std::string teacher;  // of a recipe with distillation
  std::string device = "cpu";
  std::string dtype;
  double checkpoint_minutes = 5;
  int threads = 0;
  bool profile = false;
  WorkersOptions workers;

  // Of several processes one writes files and says how far the run is.
  bool is_first_worker() const { return workers.index == 0; }
};

void AddTrainingRunOptions(CLI::App* verb, TrainingRunOptions* options);

// Meets the other processes; null if there is one.
StatusOr<std::unique_ptr<Workers>> JoinWorkers(const TrainingRunOptions& options);

// Sets the number of threads; device and type of the products.
StatusOr<TrainerOptions> MakeTrainerOptions(const TrainingRunOptions& options, Workers* workers);

// Of a recipe with distillation: --teacher, or without it `usual`. kInvalidArgument where neither
// is there, and where there is a teacher and nothing to learn from it.
Status SetTeacher(const TrainingRunOptions& options, const TrainingRecipe& recipe,
                  const std::string& usual, Trainer* trainer);

// kNotFound naming --out.
Status MakeOutputDirectory(const std::string& directory);

// Steps, once at least, until the run is done or somebody asks to stop (SIGINT, SIGTERM), with a
// checkpoint now and then and one at the end; true if it is done. `on_step`, if there is one, is
// called behind every step. Of several workers the first does all this, and the others stop where
// it does.
StatusOr<bool> RunSteps(Trainer* trainer, const TrainingRunOptions& options, Workers* workers,
                        const std::string& checkpoint, double budget_seconds, int64_t total_tokens,
                        const std::function<Status()>& on_step = nullptr);

// The model in BF16 with the corpus's tokenizer, and its loss curve: a directory that the engine
// reads.
Status SaveTrainedModel(const Trainer& trainer, const std::string& corpus,
                        const std::string& directory);

// The same in DIRECTORY/step-N, if the step just taken is N of `steps`.
Status SaveAtSteps(const Trainer& trainer, const std::vector<int64_t>& steps,
                   const std::string& corpus, const std::string& directory);

void PrintSummary(const Trainer& trainer, bool with_profile);

}  // namespace kvlathe
