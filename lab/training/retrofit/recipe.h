// The "training" of a recipe file (JSON) says what a training run does: the model's shape, the
// phases, the optimiser. Together with the corpus and the seed it determines every weight.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "training/retrofit/dmc_recipe.h"
#include "training/retrofit/dms/dms_recipe.h"

namespace kvlathe {

// A stretch of the run with one context length and one mixture of sources.
struct TrainingPhase {
  int context = 256;  // tokens a sequence
  double share = 1;   // of the run; the shares of all phases add up to 1
  // Source name to its share of the sequences; shares are normalised.
  std::map<std::string, double> mixture;
};

struct OptimizerSettings {
  // Muon (Jordan et al. 2024, scaled as in Liu et al. 2025, arXiv:2502.16982) moves the matrices of
  // the layers, AdamW everything else; without it AdamW moves all.
  bool muon = false;
  double learning_rate = 2e-3;  // peak
  double final_share = 0.05;    // of the peak, at the end of the cosine
  double warmup_share = 0.02;   // of the run
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // matrices only
  double momentum = 0.95;     // of Muon
  double clip_norm = 1.0;     // of the gradient of all parameters
};

// A cache of means of consecutive positions, as `pool` of the engine has it.
struct PoolRecipe {
  int every = 4;   // positions of an entry
  int n_sink = 0;  // first positions that are not merged
};

// The weights that a run moves; the others stay as they are, bit for bit, and have neither
// gradients nor moments.
enum class TrainedWeights {
  kAll,
  kAttention,  // W_Q, W_K, W_V and W_O of all layers, with their biases
};

struct TrainingRecipe {
  ModelConfig model;
  int64_t total_tokens = 0;  // of the run, unless a time budget decides
  int batch_tokens = 8192;   // an optimiser step
  int micro_batch_tokens = 4096;
  uint64_t seed = 1;
  TrainedWeights trained = TrainedWeights::kAll;
  // Weight of the divergence from a teacher's distributions, beside the log-likelihood; 0: none.
  double distillation = 0;
  OptimizerSettings optimizer;
  std::vector<TrainingPhase> phases;
  std::optional<DmcRecipe> dmc;  // a retrofit; then `model` has its DmcConfig too
  // Heads that decide which entries leave the cache; they alone are trained then.
  std::optional<DmsRecipe> dms;
  std::optional<PoolRecipe> pool;  // a model that is to live with a pooled cache
  std::string validation_source;   // empty: none
  int validation_tokens = 32768;
  int validation_interval = 200;  // steps
  // Steps behind which the model is kept; of a retrofit, of each stage.
  std::vector<int64_t> save_at_steps;

  // The phase at `progress` in [0, 1] of the run.
  int PhaseIndexAt(double progress) const;
  // Linear warm-up, then a cosine from the peak to final_share of it.
  double LearningRateAt(double progress) const;
};

// The run of one stage of a recipe that has `dmc`: its length, and its learning rate (constant
// while the target rises, a cosine to final_share behind it).
TrainingRecipe RecipeOfStage(const TrainingRecipe& whole, DmcStage stage);

// kInvalidArgument naming the file and the key: an unknown key, a number out of range, a mixture
// that is empty, phases whose shares do not add up, a batch that is no multiple of its parts.
// `base`, if there is one, is the model where the recipe has none.
StatusOr<TrainingRecipe> LoadRecipe(const std::string& path, const ModelConfig* base = nullptr);
StatusOr<TrainingRecipe> ParseRecipe(const nlohmann::json& json, const std::string& where,
                                     const ModelConfig* base = nullptr);

}  // namespace kvlathe
