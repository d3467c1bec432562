#include "runtime/cache_loss.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "evaluation/short_loss.h"
#include "io/files.h"
#include "runtime/shared_texts.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

// Nats per token. On text, 0.1 is about a tenth more perplexity.
constexpr double kLargeKl = 0.1;
// Of the kept file, and of how its figures are measured.
constexpr int kFormat = 2;

struct Measured {
  double kl = 0;
  double top1_agreement = 0;
};

// Empty where the system names no directory of the user's.
StatusOr<std::string> KeptPath(Workspace* workspace, const SpecModel& spec_model) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return std::string();
  KVL_ASSIGN_OR_RETURN(const SequenceIdentity identity, IdentityOf(workspace, spec_model));
  Fingerprint key;
  key.Add(identity.spec);
  key.Add(identity.model);
  key.Add(RowTypeName(workspace->row_type()));
  key.Add(kFormat);
  return directory + "/loss-" + key.Hex() + ".json";
}

StatusOr<Measured> ReadKept(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path, /*max_bytes=*/1 << 16));
  const auto number = [&](const char* name) -> std::optional<double> {
    if (!json.is_object() || !json.contains(name) || !json[name].is_number()) return std::nullopt;
    return json[name].get<double>();
  };
  const std::optional<double> kl = number("kl"), top1_agreement = number("top1_agreement");
  if (!kl.has_value() || !(*kl >= 0) || !top1_agreement.has_value()) {
    return Error(StatusCode::kDataLoss, "{}: kl or top1_agreement is missing", path);
  }
  return Measured{*kl, *top1_agreement};
}

Status Keep(const std::string& path, const SpecModel& spec_model, const ShortLoss& loss) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return Error(StatusCode::kInternal, "{}: {}", path, error.message());
  const nlohmann::ordered_json json = {{"format", kFormat},
                                       {"kv", spec_model.spec.ToString()},
                                       {"tokens", loss.n_tokens},
                                       {"kl", loss.kl},
                                       {"top1_agreement", loss.top1_agreement}};
  return WriteFileAtomically(path, json.dump() + "\n");
}

// Measures caches of one workspace; what the uncompressed one says is computed once for all.
class Meter {
 public:
  explicit Meter(Workspace* workspace) : workspace_(workspace) {}

  StatusOr<ShortLoss> Measure(const SpecModel& spec_model) {
    const Progress& progress = workspace_->progress();
    const std::string what = fmt::format("measuring what {} loses", spec_model.spec.text());
    if (progress) progress(what, 0);
    if (!baseline_.has_value()) {
      KVL_ASSIGN_OR_RETURN(baseline_, ReadBaseline());
    }
    if (progress) progress(what, 0.5);
    KVL_ASSIGN_OR_RETURN(const ShortLoss loss, baseline_->Compare(spec_model.model.get(),
                                                                  MeasuringBudgetBytes(*workspace_),
                                                                  workspace_->threads()));
    if (progress) progress(what, 1);
    return loss;
  }

 private:
  StatusOr<ShortTextBaseline> ReadBaseline() {
    KVL_ASSIGN_OR_RETURN(const std::string path,
                         TextOfModel(workspace_->options().model, "sample.txt"));
    KVL_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, workspace_->TokenizeFile(path));
    if (const std::optional<int32_t> bos = workspace_->leading_bos(); bos.has_value()) {
      tokens.insert(tokens.begin(), *bos);
    }
    if (std::ssize(tokens) > workspace_->context_tokens()) {
      tokens.resize(workspace_->context_tokens());
    }
    KVL_ASSIGN_OR_RETURN(const SpecModel none, workspace_->MakeModel("none"));
    return ShortTextBaseline::Read(none.model.get(), tokens, MeasuringBudgetBytes(*workspace_));
  }

  Workspace* workspace_;
  std::optional<ShortTextBaseline> baseline_;
};

// What is kept of the cache, or is measured now and kept from then on.
StatusOr<Measured> LossOf(Workspace* workspace, const SpecModel& spec_model, Meter* meter) {
  KVL_ASSIGN_OR_RETURN(const std::string path, KeptPath(workspace, spec_model));
  if (!path.empty() && FileExists(path)) {
    const StatusOr<Measured> kept = ReadKept(path);
    if (kept.ok()) return *kept;
    workspace->Notify(Note::Kind::kWarning,
                      fmt::format("{}; measured again", MessageOf(kept.status())));
  }
  KVL_ASSIGN_OR_RETURN(const ShortLoss loss, meter->Measure(spec_model));
  if (!path.empty()) {
    if (const Status status = Keep(path, spec_model, loss); !status.ok()) {
      workspace->Notify(Note::Kind::kWarning,
                        fmt::format("what --kv '{}' loses is not kept and will be measured again: "
                                    "{}",
                                    spec_model.spec.text(), MessageOf(status)));
    }
  }
  return Measured{loss.kl, loss.top1_agreement};
}

// What to take in place of a cache that loses much.
std::string AdviceAgainst(const Spec& spec) {
  if (spec.basis() != nullptr) return "take a smaller rate or ratio, or kivi(bits=4)";
  const auto* const kivi = spec.quantizer_as<KiviOptions>();
  const bool is_advised = kivi != nullptr && kivi->bits >= 4 && spec.retention() == nullptr;
  if (is_advised) return "take lathe(ratio=4), which is calibrated first, or none";
  return "take kivi(bits=4), or lathe(ratio=4), which is calibrated first";
}

}  // namespace

void WarnOfLoss(Workspace* workspace, std::span<const SpecModel> spec_models) {
  Meter meter(workspace);
  for (const SpecModel& spec_model : spec_models) {
    const Spec& spec = spec_model.spec;
    if (spec.is_none()) continue;
    const StatusOr<Measured> loss = LossOf(workspace, spec_model, &meter);
    if (!loss.ok()) {
      workspace->Notify(Note::Kind::kNote, fmt::format("what --kv '{}' loses was not measured: {}",
                                                       spec.text(), MessageOf(loss.status())));
    } else if (loss->kl >= kLargeKl) {
      workspace->Notify(
          Note::Kind::kWarning,
          fmt::format("--kv '{}' changes what this model says: on a short text it is {:.2f} nats "
                      "per token away from the uncompressed cache (0.01 costs about 1% of "
                      "perplexity), and {:.0f}% of its likeliest tokens are others; {}, or see "
                      "kvlathe compare",
                      spec.text(), loss->kl, 100 * (1 - loss->top1_agreement),
                      AdviceAgainst(spec)));
    }
  }
}

}  // namespace kvlathe
