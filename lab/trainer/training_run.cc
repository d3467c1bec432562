#include "training_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/cpu_features.h"
#include "io/files.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/model_directory.h"

namespace kvlathe {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
void RequestStop(int) { stop_requested = 1; }

// One line that replaces itself on a terminal; elsewhere a line a minute.
class TrainingProgress {
 public:
  explicit TrainingProgress(const Trainer* trainer, double budget_seconds, int64_t total_tokens)
      : trainer_(trainer),
        budget_seconds_(budget_seconds),
        total_tokens_(total_tokens),
        first_tokens_(trainer->tokens()),
        is_terminal_(isatty(STDERR_FILENO) != 0) {}

  void Show(bool is_last) {
    if (!is_last && since_shown_.Seconds() < (is_terminal_ ? 1 : 60)) return;
    since_shown_.Restart();
    const double rate = (trainer_->tokens() - first_tokens_) / since_start_.Seconds();
    const double left = budget_seconds_ > 0
                            ? budget_seconds_ - trainer_->seconds()
                            : (total_tokens_ - trainer_->tokens()) / std::max(rate, 1.0);
    const LossPoint& point = trainer_->curve().back();
    const std::string compression =
        point.kept_share > 0 ? fmt::format("CR {:.2f}, hinge {:.2g}, ", 1 / point.kept_share,
                                           trainer_->hinge_weight())
                             : "";
    fmt::print(stderr,
               "{}step {} {:.2f}M tokens, {:.1f}%, context {}, loss {:.3f}, {}{:.0f} tokens/s, "
               "{:.1f} min left{}",
               is_terminal_ ? "\r" : "", point.step, point.tokens / 1e6, 100 * trainer_->progress(),
               point.context, RecentLoss(), compression, rate, std::max(0.0, left) / 60,
               is_terminal_ && !is_last ? "   " : "\n");
    std::fflush(stderr);
  }

 private:
  double RecentLoss() const {
    const std::vector<LossPoint>& curve = trainer_->curve();
    const size_t n = std::min<size_t>(20, curve.size());
    double sum = 0;
    for (size_t i = curve.size() - n; i < curve.size(); ++i) sum += curve[i].loss;
    return sum / static_cast<double>(n);
  }

  const Trainer* trainer_;
  double budget_seconds_;
  int64_t total_tokens_, first_tokens_;
  bool is_terminal_;
  Stopwatch since_start_, since_shown_;
};

StatusOr<torch::Device> ChooseDevice(const std::string& name) {
  if (name == "cpu") return torch::Device(torch::kCPU);
  if (!torch::cuda::is_available()) {
    return Error(StatusCode::kInvalidArgument,
                 "--device cuda: this libtorch sees no GPU; use --device cpu");
  }
  return torch::Device(torch::kCUDA);
}

// Without BF16 instructions libtorch's products of BF16 take many times longer than those of F32.
torch::ScalarType ChooseComputeType(const std::string& dtype, const torch::Device& device) {
  if (dtype.empty()) {
    const bool has_bf16 = device.is_cuda() || HasBf16Dots(AvailableIsas().back());
    return has_bf16 ? torch::kBFloat16 : torch::kFloat;
  }
  return dtype == "f32" ? torch::kFloat : torch::kBFloat16;
}

}  // namespace

void AddTrainingRunOptions(CLI::App* verb, TrainingRunOptions* options) {
  verb->add_option("--recipe", options->recipe, "recipe file")->required();
  verb->add_option("--corpus", options->corpus, "directory that `retrofit corpus` made")
      ->required();
  verb->add_option("--out", options->out,
                   "directory for the model, the checkpoint and the loss curve")
      ->required();
  verb->add_option("--teacher", options->teacher,
                   "model directory or .gguf file whose distributions a recipe with "
                   "\"distillation\" learns");
  verb->add_option("--checkpoint-minutes", options->checkpoint_minutes, "between checkpoints")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--device", options->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--dtype", options->dtype,
                   "of the matrix products; without it bf16, or f32 on a processor without BF16 "
                   "instructions")
      ->check(CLI::IsMember({"bf16", "f32"}));
  verb->add_option("-t,--threads", options->threads, "0: as many as processors")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--profile", options->profile, "print where the time went");
  verb->add_option("--workers", options->workers.count,
                   "processes that share the micro batches of each step; each is started with the "
                   "same command and its --worker")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  verb->add_option("--worker", options->workers.index, "which of them this is, from 0; 0 writes")
      ->capture_default_str()
      ->check(CLI::Range(0, 1023));
  verb->add_option("--meet", options->workers.meet,
                   "HOST:PORT that worker 0 listens on and the others come to");
}

StatusOr<std::unique_ptr<Workers>> JoinWorkers(const TrainingRunOptions& options) {
  if (options.workers.count == 1 && options.workers.index == 0) return std::unique_ptr<Workers>();
  return Workers::Join(options.workers);
}

StatusOr<TrainerOptions> MakeTrainerOptions(const TrainingRunOptions& options, Workers* workers) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  TrainerOptions of_trainer;
  of_trainer.workers = workers;
  KVL_ASSIGN_OR_RETURN(of_trainer.device, ChooseDevice(options.device));
  of_trainer.compute_type = ChooseComputeType(options.dtype, of_trainer.device);
  return of_trainer;
}

Status SetTeacher(const TrainingRunOptions& options, const TrainingRecipe& recipe,
                  const std::string& usual, Trainer* trainer) {
  if (recipe.distillation > 0) {
    const std::string& teacher = options.teacher.empty() ? usual : options.teacher;
    if (!teacher.empty()) return trainer->SetTeacher(teacher);
    return Error(StatusCode::kInvalidArgument,
                 "{}: \"distillation\" needs a teacher; name it with --teacher", options.recipe);
  }
  if (options.teacher.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--teacher {}: {} has no \"distillation\", the weight of what it teaches",
               options.teacher, options.recipe);
}

Status MakeOutputDirectory(const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (!failed) return OkStatus();
  return Error(StatusCode::kNotFound, "--out {}: cannot make the directory: {}", directory,
               failed.message());
}

namespace {

// What went wrong in a step, and where the run can go on from.
Status WithCheckpoint(const Status& status, const std::string& checkpoint) {
  return Error(status.code(), "{}: {}; {}", checkpoint, MessageOf(status),
               FileExists(checkpoint) ? "the checkpoint of an earlier step is kept"
                                      : "there is no checkpoint yet");
}

}  // namespace

StatusOr<bool> RunSteps(Trainer* trainer, const TrainingRunOptions& options, Workers* workers,
                        const std::string& checkpoint, double budget_seconds, int64_t total_tokens,
                        const std::function<Status()>& on_step) {
  std::signal(SIGINT, RequestStop);
  std::signal(SIGTERM, RequestStop);
  TrainingProgress progress(trainer, budget_seconds, total_tokens);
  Stopwatch since_checkpoint;
  const bool is_first = options.is_first_worker();
  bool stops = false;
  do {
    const Status stepped = trainer->Step();
    if (!stepped.ok()) return WithCheckpoint(stepped, checkpoint);
    if (is_first) progress.Show(trainer->is_done());
    if (is_first && on_step) KVL_RETURN_IF_ERROR(on_step());
    if (is_first && since_checkpoint.Seconds() > 60 * options.checkpoint_minutes) {
      KVL_RETURN_IF_ERROR(trainer->SaveCheckpoint(checkpoint));
      since_checkpoint.Restart();
    }
    stops = stop_requested != 0;
    if (workers != nullptr) {
      KVL_ASSIGN_OR_RETURN(stops, workers->AnyOf(stops));
    }
  } while (!trainer->is_done() && !stops);
  if (is_first) KVL_RETURN_IF_ERROR(trainer->SaveCheckpoint(checkpoint));
  // The others may need what is there now.
  if (workers != nullptr) KVL_RETURN_IF_ERROR(workers->AnyOf(false).status());
  return trainer->is_done();
}

Status SaveTrainedModel(const Trainer& trainer, const std::string& corpus,
                        const std::string& directory) {
  KVL_RETURN_IF_ERROR(SaveDecoder(trainer.TrainedModel(), DType::kBf16, directory));
  KVL_RETURN_IF_ERROR(CopyTokenizer(corpus, directory));
  return WriteLossCurve(trainer.curve(), std::filesystem::path(directory).filename().string(),
                        directory);
}

Status SaveAtSteps(const Trainer& trainer, const std::vector<int64_t>& steps,
                   const std::string& corpus, const std::string& directory) {
  if (std::find(steps.begin(), steps.end(), trainer.step()) == steps.end()) return OkStatus();
  return SaveTrainedModel(trainer, corpus, fmt::format("{}/step-{}", directory, trainer.step()));
}

void PrintSummary(const Trainer& trainer, bool with_profile) {
  const TrainingProfile& p = trainer.profile();
  const double steps = p.data + p.forward + p.backward + p.optimizer;
  fmt::print(
      "{} steps, {} tokens, {} parameters; last loss {:.4f}; {:.3f} TFLOP/s of model FLOPs\n",
      trainer.step(), trainer.tokens(), trainer.decoder().n_parameters(),
      trainer.curve().back().loss, trainer.flops() / steps / 1e12);
  if (!with_profile) return;
  for (const auto& [name, seconds] : {std::pair{"data", p.data},
                                      {"forward", p.forward},
                                      {"backward", p.backward},
                                      {"optimizer", p.optimizer},
                                      {"validation", p.validation}}) {
    fmt::print("  {:<10} {:>8.1f} s\n", name, seconds);
  }
}

}  // namespace kvlathe
