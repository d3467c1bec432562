// Saving and resuming a Trainer.
#include <algorithm>
#include <sstream>

#include "io/atomic_file.h"
#include "io/files.h"
#include "training/retrofit/trainer.h"

namespace kvlathe {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr int64_t kMaxCheckpointBytes = int64_t{1} << 40;

torch::Tensor CurveTensor(const std::vector<LossPoint>& curve) {
  torch::Tensor rows = torch::empty({static_cast<int64_t>(curve.size()), 7}, torch::kDouble);
  double* at = rows.data_ptr<double>();
  for (const LossPoint& p : curve) {
    for (const double value : {static_cast<double>(p.step), static_cast<double>(p.tokens),
                               static_cast<double>(p.context), p.learning_rate, p.loss,
                               p.validation_bpb, p.kept_share}) {
      *at++ = value;
    }
  }
  return rows;
}

std::vector<LossPoint> CurvePoints(const torch::Tensor& rows) {
  std::vector<LossPoint> curve(static_cast<size_t>(rows.size(0)));
  const double* at = rows.data_ptr<double>();
  const int64_t n_columns = rows.size(1);
  for (LossPoint& p : curve) {
    p.step = static_cast<int64_t>(at[0]);
    p.tokens = static_cast<int64_t>(at[1]);
    p.context = static_cast<int>(at[2]);
    p.learning_rate = at[3];
    p.loss = at[4];
    p.validation_bpb = at[5];
    if (n_columns > 6) p.kept_share = at[6];  // older checkpoints have none
    at += n_columns;
  }
  return curve;
}

}  // namespace

std::string Trainer::RecipeFingerprint() const {
  const ModelConfig& c = recipe_->model;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} | {} {} {} {}", c.n_layers, c.hidden_dim, c.n_heads,
                  c.n_kv_heads, c.head_dim, c.ffn_dim, c.vocab_size, recipe_->optimizer.muon,
                  recipe_->batch_tokens, recipe_->micro_batch_tokens, recipe_->seed);
  if (c.model_type != "llama") text += " | " + c.model_type;
  for (const TrainingPhase& phase : recipe_->phases) {
    text += fmt::format(" | {} {}", phase.context, phase.share);
    for (const auto& [name, weight] : phase.mixture) text += fmt::format(" {}:{}", name, weight);
  }
  if (recipe_->pool.has_value()) {
    text += fmt::format(" | pool {} {}", recipe_->pool->every, recipe_->pool->n_sink);
  }
  if (recipe_->trained == TrainedWeights::kAttention) text += " | attention";
  if (options_.dmc_stage.has_value()) {
    const DmcRecipe& dmc = *recipe_->dmc;
    if (dmc.deciding_rate != 1) text += fmt::format(" | rate {}", dmc.deciding_rate);
    text += fmt::format(" | {} {} {} {} {} {} {} {} {} {} {} {}", NameOf(*options_.dmc_stage),
                        dmc.config.is_last, dmc.config.offset, dmc.config.weight_offset,
                        static_cast<int>(dmc.hinge), dmc.is_consistent,
                        dmc.variant.shares_decisions, dmc.variant.uniform_weights, dmc.temperature,
                        dmc.window, dmc.compression, recipe_->total_tokens);
  }
  return text;
}

Status Trainer::SaveCheckpoint(const std::string& path) const {
  std::ostringstream bytes;
  try {
    OutputArchive archive;
    archive.write("recipe", c10::IValue(RecipeFingerprint()));
    archive.write("state", torch::tensor({state_.step, state_.tokens, int64_t{state_.phase_idx},
                                          state_.phase_sequences},
                                         torch::kLong));
    archive.write("seconds", torch::tensor({state_.seconds}, torch::kDouble));
    archive.write("curve", CurveTensor(curve_));
    for (const auto& [name, tensor] : decoder_->parameters()) {
      std::string key = name;
      std::replace(key.begin(), key.end(), '.', '/');
      archive.write(key, tensor.detach(), /*is_buffer=*/true);
    }
    OutputArchive optimizer;
    optimizer_->Save(&optimizer);
    archive.write("optimizer", optimizer);
    archive.save_to(bytes);
  } catch (const c10::Error& error) {
    return Error(StatusCode::kInternal, "{}: the checkpoint cannot be made: {}", path,
                 error.what_without_backtrace());
  }
  const std::string contents = bytes.str();
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  KVL_RETURN_IF_ERROR(file.Write(contents.data(), static_cast<int64_t>(contents.size())));
  return file.Commit();
}

Status Trainer::LoadCheckpoint(const std::string& path) { return ReadCheckpoint(path, true); }

Status Trainer::StartFrom(const std::string& path) { return ReadCheckpoint(path, false); }

Status Trainer::ReadCheckpoint(const std::string& path, bool goes_on) {
  KVL_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(path, kMaxCheckpointBytes));
  try {
    InputArchive archive;
    archive.load_from(contents.data(), contents.size(), options_.device);
    c10::IValue recipe;
    archive.read("recipe", recipe);
    if (goes_on && recipe.toStringRef() != RecipeFingerprint()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: the checkpoint belongs to another recipe; name another --checkpoint", path);
    }
    torch::Tensor state, seconds, curve;
    archive.read("state", state);
    archive.read("seconds", seconds);
    archive.read("curve", curve);
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : decoder_->parameters()) {
      std::string key = name;
      std::replace(key.begin(), key.end(), '.', '/');
      torch::Tensor saved;
      archive.read(key, saved, /*is_buffer=*/true);
      torch::Tensor parameter = tensor;
      parameter.copy_(saved);
    }
    InputArchive optimizer;
    archive.read("optimizer", optimizer);
    optimizer_->Load(&optimizer);
    if (!goes_on) return OkStatus();
    state = state.cpu();
    const int64_t* numbers = state.data_ptr<int64_t>();
    state_ = {numbers[0], numbers[1], seconds.item<double>(), static_cast<int>(numbers[2]),
              numbers[3]};
    curve_ = CurvePoints(curve.cpu());
  } catch (const c10::Error& error) {
    return Error(StatusCode::kDataLoss, "{}: not a whole checkpoint; remove it or name another",
                 path);
  }
  return OkStatus();
}

}  // namespace kvlathe
