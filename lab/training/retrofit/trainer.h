// A Trainer trains a Decoder on a corpus: steps, checkpoints, validation.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/batch_order.h"
#include "training/retrofit/decoder.h"
#include "training/retrofit/loss_curve.h"
#include "training/retrofit/merging/dmc_pass.h"
#include "training/retrofit/optimizer.h"
#include "training/retrofit/recipe.h"
#include "training/retrofit/workers.h"

namespace kvlathe {

struct TrainerOptions {
  torch::Device device = torch::kCPU;
  torch::ScalarType compute_type = torch::kBFloat16;
  // With a time budget, the share of it that is used up replaces the share of total_tokens as the
  // progress that decides phase and learning rate; the run ends with the budget. Seconds; 0: none.
  double budget_seconds = 0;
  // Of a recipe with `dmc`: which stage the run is. The recipe is that of the stage
  // (RecipeOfStage).
  std::optional<DmcStage> dmc_stage;
  // The processes that share the micro batches of each step; null: this one runs all. They outlive
  // the trainer, and all call it alike.
  Workers* workers = nullptr;
};

// Where the time of the steps went, seconds.
struct TrainingProfile {
  double data = 0, forward = 0, backward = 0, optimizer = 0, validation = 0;
};

class Trainer {
 public:
  // `recipe` and `corpus` outlive the trainer. Errors are those of BatchOrder and CheckTrainable;
  // kInvalidArgument for workers that cannot share the micro batches alike, or a time budget, which
  // no two processes would use up alike.
  static StatusOr<std::unique_ptr<Trainer>> Create(const TrainingRecipe* recipe,
                                                   const Corpus* corpus,
                                                   const TrainerOptions& options);

  // The model whose distributions a recipe with `distillation` learns as well: the one that is
  // retrofitted or converted. kInvalidArgument when its vocabulary is another. Before the first
  // step.
  Status SetTeacher(const std::string& model);

  // Of a recipe with `dms`, before the first step: heads begin with what attention says
  // (training/retrofit/dms/dms_fit.h), over the sequences of the first phase that the steps then do
  // not read. `on_sequence` is called behind each with how many there are. kDataLoss as of DmsFit.
  Status FitDmsHeads(const std::function<void(int64_t n_done, int64_t n)>& on_sequence);
  // The recipe's `dms` with the offset that leaves the share of its compression over the validation
  // source; without one as it is. kDataLoss where logits are not finite.
  StatusOr<DmsRecipe> CalibratedDms() const;

  // One optimiser step. kDataLoss, with the step and what is not finite, when the loss is not, or
  // when the gradients of ten steps in a row are not; then the trainer cannot go on.
  Status Step();
  bool is_done() const { return progress() >= 1; }
  // Share of the run that is done, in [0, 1].
  double progress() const;

  // Mean bits per byte of the validation source at the present phase's context; below 0 if the
  // recipe names none.
  double Validate();

  // Everything that the rest of the run depends on; a run that loads it takes the same steps as one
  // that went on (bit for bit on the same machine and thread count, without a time budget).
  // The file appears whole or not at all: what stood there stays until it is replaced. kDataLoss,
  // naming it, where a parameter is no longer finite.
  Status SaveCheckpoint(const std::string& path) const;
  // kDataLoss when the file is damaged; kInvalidArgument, saying what differs, when it belongs to
  // another model or recipe. Both leave the trainer as it was.
  Status LoadCheckpoint(const std::string& path);
  // Parameters and moments of another stage's checkpoint; the run itself begins anew. The recipe
  // may be another one, the model, the optimiser's method and which weights are trained may not.
  Status StartFrom(const std::string& path);

  const Decoder& decoder() const { return *decoder_; }
  // The model as the engine computes it: a variant of DMC is folded into a copy; without one the
  // parameters are those of decoder().
  Decoder TrainedModel() const;
  Decoder* mutable_decoder() { return decoder_.get(); }
  const std::vector<LossPoint>& curve() const { return curve_; }
  const TrainingProfile& profile() const { return profile_; }
  int64_t step() const { return state_.step; }
  double hinge_weight() const { return state_.hinge_weight; }  // of a retrofit
  int64_t tokens() const { return state_.tokens; }
  double seconds() const { return state_.seconds; }
  // Model FLOPs of the steps that this object took.
  double flops() const { return flops_; }

 private:
  // What a checkpoint carries beside tensors.
  struct State {
    int64_t step = 0;
    int64_t tokens = 0;
    double seconds = 0;  // in steps
    int phase_idx = 0;
    int64_t phase_sequences = 0;  // read in this phase
    double hinge_weight = 1;      // of a retrofit
  };

  Trainer(const TrainingRecipe* recipe, const TrainerOptions& options, BatchOrder order);
  // Those of this process, and the sums over all.
  Status RunMicroBatches(LossPoint* point);
  Status AddUpWorkers(const Status& own, LossPoint* point);
  // What a micro batch adds to the point of its step; its gradients are added up.
  Status RunMicroBatch(int micro_batch_idx, int n_micro_batches, LossPoint* point);
  // How layers merge in a forward pass; null if they do not.
  std::unique_ptr<MergePass> MakePass(DmcDecisions decisions, int micro_batch_idx) const;
  torch::Tensor ReadBatch(int n_sequences, int context,
                          const std::function<void(int64_t, std::span<int64_t>)>& read) const;
  struct Losses {
    torch::Tensor language;  // of the learned tokens
    // And the weighed divergence from the teacher, if there is one: its mean over all positions,
    // learned or only read.
    torch::Tensor whole;
  };
  // Final hidden states [n_sequences * context, hidden_dim] of a batch.
  torch::Tensor Hidden(const torch::Tensor& batch, MergePass* pass) const;
  torch::Tensor TeacherLogits(const torch::Tensor& batch) const;
  // Both are the mean divergence from the model whose cache is whole, where heads alone are
  // trained.
  Losses DivergenceOf(const torch::Tensor& hidden, const torch::Tensor& batch) const;
  bool IsSaved(const torch::Tensor& parameter) const;
  Losses LossesOf(const torch::Tensor& hidden, const torch::Tensor& batch) const;
  torch::Tensor MergeLoss(const torch::Tensor& alpha) const;
  // The share of positions that begin an entry, or stay one, that the next step is held to.
  double TargetShare() const;
  std::string RecipeFingerprint() const;
  Status CheckFits(const std::string& path, const std::string& fingerprint, bool goes_on) const;
  Status ReadParameters(const std::string& path, torch::serialize::InputArchive* archive);
  Status ReadCheckpoint(const std::string& path, bool goes_on);

  const TrainingRecipe* recipe_;
  const Corpus* corpus_ = nullptr;
  TrainerOptions options_;
  BatchOrder order_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Decoder> teacher_;  // with distillation
  std::unique_ptr<Optimizer> optimizer_;
  State state_;
  std::vector<LossPoint> curve_;
  TrainingProfile profile_;
  double flops_ = 0;
  int n_left_out_ = 0;  // newest steps whose gradients were not finite
};

}  // namespace kvlathe
