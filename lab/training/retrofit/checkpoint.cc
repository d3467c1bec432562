// Saving and resuming a Trainer.
#include <fmt/ranges.h>

#include <algorithm>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "training/retrofit/fingerprint.h"
#include "training/retrofit/trainer.h"

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// Of a parameter in an archive, whose keys have no dots.
std::string KeyOf(std::string name) {
  std::replace(name.begin(), name.end(), '.', '/');
  return name;
}

Tensor CurveTensor(const std::vector<LossPoint>& curve) {
  Tensor rows = torch::empty({static_cast<int64_t>(curve.size()), 7}, torch::kDouble);
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

std::vector<LossPoint> CurvePoints(const Tensor& rows) {
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

// Where heads alone are trained, all else is in the model's own file.
bool Trainer::IsSaved(const Tensor& parameter) const {
  return !recipe_->dms.has_value() || parameter.requires_grad();
}

std::string Trainer::RecipeFingerprint() const {
  return FingerprintOf(*recipe_, options_.dmc_stage);
}

Status Trainer::SaveCheckpoint(const std::string& path) const {
  if (const std::string name = FirstNotFinite(*decoder_); !name.empty()) {
    return Error(
        StatusCode::kDataLoss,
        "{}: not written: behind step {} '{}' is no longer finite; lower the learning rate", path,
        state_.step, name);
  }
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  // A writer that fails, and a stream that is destroyed while an error is on its way, would end the
  // process; so libtorch never hears of a failure.
  Status written;
  const auto write = [&](const void* data, size_t n_bytes) {
    if (written.ok()) written = file.Write(data, static_cast<int64_t>(n_bytes));
    return n_bytes;
  };
  try {
    OutputArchive archive;
    archive.write("recipe", c10::IValue(RecipeFingerprint()));
    archive.write("state", torch::tensor({state_.step, state_.tokens, int64_t{state_.phase_idx},
                                          state_.phase_sequences},
                                         torch::kLong));
    archive.write("seconds", torch::tensor({state_.seconds, state_.hinge_weight}, torch::kDouble));
    archive.write("curve", CurveTensor(curve_));
    for (const auto& [name, tensor] : decoder_->parameters()) {
      if (!IsSaved(tensor)) continue;
      archive.write(KeyOf(name), tensor.detach(), /*is_buffer=*/true);
    }
    OutputArchive optimizer;
    optimizer_->Save(&optimizer);
    archive.write("optimizer", optimizer);
    archive.save_to(write);
  } catch (const c10::Error& error) {
    return Error(StatusCode::kInternal, "{}: the checkpoint cannot be made: {}", path,
                 error.what_without_backtrace());
  }
  KVL_RETURN_IF_ERROR(written);
  return file.Commit();
}

Status Trainer::LoadCheckpoint(const std::string& path) { return ReadCheckpoint(path, true); }

Status Trainer::StartFrom(const std::string& path) { return ReadCheckpoint(path, false); }

Status Trainer::CheckFits(const std::string& path, const std::string& fingerprint,
                          bool goes_on) const {
  const FingerprintDifferences found = CompareFingerprints(
      fingerprint, RecipeFingerprint(), goes_on ? FingerprintUse::kGoOn : FingerprintUse::kBegin);
  if (found.what.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{}: the checkpoint is of another {}: {}; {}", path,
               found.is_of_model ? "model" : "recipe", found.what,
               goes_on ? "take its recipe and model, or another --out"
                       : "take one that was trained with this recipe's model and optimizer");
}

Status Trainer::ReadParameters(const std::string& path, InputArchive* archive) {
  std::vector<Tensor> saved, into;
  for (const auto& [name, parameter] : decoder_->parameters()) {
    if (!IsSaved(parameter)) continue;
    into.push_back(parameter);
    if (!archive->try_read(KeyOf(name), saved.emplace_back(), /*is_buffer=*/true)) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: the checkpoint is of another model: it has no '{}'", path, name);
    }
    if (saved.back().sizes() == parameter.sizes()) continue;
    return Error(StatusCode::kInvalidArgument,
                 "{}: the checkpoint is of another model: '{}' has the shape [{}] there, [{}] here",
                 path, name, fmt::join(saved.back().sizes(), ", "),
                 fmt::join(parameter.sizes(), ", "));
  }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < saved.size(); ++i) {
    into[i].copy_(saved[i]);
  }
  return OkStatus();
}

Status Trainer::ReadCheckpoint(const std::string& path, bool goes_on) {
  KVL_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  try {
    InputArchive archive;
    archive.load_from(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size(),
                      options_.device);
    c10::IValue recipe;
    archive.read("recipe", recipe);
    KVL_RETURN_IF_ERROR(CheckFits(path, recipe.toStringRef(), goes_on));
    Tensor state, seconds, curve;
    archive.read("state", state);
    archive.read("seconds", seconds);
    archive.read("curve", curve);
    KVL_RETURN_IF_ERROR(ReadParameters(path, &archive));
    InputArchive optimizer;
    archive.read("optimizer", optimizer);
    optimizer_->Load(&optimizer);
    // Older checkpoints have no weight. A stage goes on with that of the stage before.
    if (seconds.numel() > 1) state_.hinge_weight = seconds[1].item<double>();
    if (!goes_on) return OkStatus();
    state = state.cpu();
    const int64_t* numbers = state.data_ptr<int64_t>();
    state_ = {
        numbers[0], numbers[1],         seconds[0].item<double>(), static_cast<int>(numbers[2]),
        numbers[3], state_.hinge_weight};
    curve_ = CurvePoints(curve.cpu());
  } catch (const c10::Error& error) {
    return Error(StatusCode::kDataLoss, "{}: not a whole checkpoint; remove it or name another",
                 path);
  }
  return OkStatus();
}

}  // namespace kvlathe
