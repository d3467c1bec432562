#include "runtime/cache_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "evaluation/quality.h"
#include "io/files.h"
#include "runtime/shared_texts.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

constexpr int kWindowTokens = 512;
// Nats per token. On text, 0.1 is about a tenth more perplexity.
constexpr double kLargeKl = 0.1;

std::string KeptPath(const SequenceIdentity& identity, const OpenOptions& options) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return {};
  Fingerprint key;
  key.Add(identity.spec);
  key.Add(identity.model);
  key.Add(RowTypeName(options.row_type));
  return directory + "/loss-" + key.Hex() + ".txt";
}

std::optional<double> ReadKept(const std::string& path) {
  if (path.empty() || !FileExists(path)) return std::nullopt;
  const StatusOr<std::string> text = ReadTextFile(path, /*max_bytes=*/64);
  double kl = 0;
  if (!text.ok()) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), kl);
  return error == std::errc() ? std::optional<double>(kl) : std::nullopt;
}

StatusOr<double> MeasureKl(Workspace* workspace, const SpecModel& spec_model) {
  KVL_ASSIGN_OR_RETURN(const std::string path,
                       TextOfModel(workspace->options().model, "sample.txt"));
  KVL_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, workspace->TokenizeFile(path));
  const int n_window = std::min(kWindowTokens, workspace->context_tokens());
  tokens.resize(std::min<size_t>(tokens.size(), n_window));
  const Tokenizer& tokenizer = workspace->tokenizer();
  const auto bytes_of = [&](int32_t id) {
    return static_cast<int>(tokenizer.TokenBytes(id).size());
  };
  KVL_ASSIGN_OR_RETURN(const EvaluationText text,
                       CutIntoWindows(tokens, bytes_of, workspace->leading_bos(), n_window));
  KVL_ASSIGN_OR_RETURN(const SpecModel baseline, workspace->MakeModel("none"));
  Model* const models[] = {baseline.model.get(), spec_model.model.get()};
  KVL_ASSIGN_OR_RETURN(const std::vector<Quality> qualities,
                       MeasureQuality(models, text, MeasuringBudgetBytes(*workspace),
                                      workspace->threads(), workspace->progress()));
  return qualities[1].kl;
}

}  // namespace

Status WarnOfLoss(Workspace* workspace, const SpecModel& spec_model) {
  if (!spec_model.ranks.has_value()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const SequenceIdentity identity, IdentityOf(workspace, spec_model));
  const std::string path = KeptPath(identity, workspace->options());
  std::optional<double> kl = ReadKept(path);
  if (!kl.has_value()) {
    KVL_ASSIGN_OR_RETURN(kl, MeasureKl(workspace, spec_model));
    // What cannot be kept is measured again next time.
    std::error_code ignored;
    if (!path.empty()) {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
      (void)WriteFileAtomically(path, fmt::format("{}\n", *kl));
    }
  }
  if (*kl < kLargeKl) return OkStatus();
  workspace->Notify(
      Note::Kind::kWarning,
      fmt::format(
          "--kv '{}' changes what this model says: on a short text it is {:.2f} nats per "
          "token away from the uncompressed cache (0.01 costs about 1% of perplexity); take "
          "a smaller rate or ratio, or see kvlathe compare",
          spec_model.spec.text(), *kl));
  return OkStatus();
}

}  // namespace kvlathe
