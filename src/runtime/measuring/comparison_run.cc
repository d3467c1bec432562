#include "runtime/measuring/comparison_run.h"

#include <algorithm>

#include "base/units.h"
#include "runtime/prediction_notes.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

struct ComparedCache {
  std::string kv;
  std::optional<double> rate;
};

StatusOr<std::vector<ComparedCache>> CachesOf(const std::vector<std::string>& specs,
                                              std::span<const double> rates) {
  std::vector<ComparedCache> caches;
  bool uses_rates = rates.empty();
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    if (rates.empty() || spec.basis() == nullptr || !IsResident(*spec.basis())) {
      caches.push_back({kv, std::nullopt});
      continue;
    }
    uses_rates = true;
    for (const double rate : rates) caches.push_back({kv, rate});
  }
  if (uses_rates) return caches;
  return Error(StatusCode::kInvalidArgument, "--rate {}: no --kv has resident=full", rates.front());
}

}  // namespace

StatusOr<ComparisonRun> RunComparison(Workspace* workspace, const ComparisonOptions& options) {
  // Specs first: a wrong one is refused before anything takes time.
  KVL_ASSIGN_OR_RETURN(const std::vector<ComparedCache> caches,
                       CachesOf(options.specs, options.rates));
  for (const ComparedCache& cache : caches) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(cache.kv));
    workspace->Expect(spec);
  }
  const Tokenizer& tokenizer = workspace->tokenizer();
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                       options.text.empty() ? workspace->TokenizeFile(options.text_path)
                                            : workspace->TokenizeText(options.text));
  const int n_window_tokens = options.window_tokens > 0
                                  ? std::min(options.window_tokens, workspace->context_tokens())
                                  : workspace->window_tokens();
  KVL_ASSIGN_OR_RETURN(
      EvaluationText text,
      CutIntoWindows(
          tokens, [&](int32_t id) { return static_cast<int>(tokenizer.TokenBytes(id).size()); },
          workspace->leading_bos(), n_window_tokens));
  if (options.n_windows > 0 && std::ssize(text.windows) > options.n_windows) {
    text.windows.resize(options.n_windows);
    text.token_bytes.resize(options.n_windows);
  }

  std::vector<SpecModel> spec_models;  // the baseline first, whether it is in the table or not
  KVL_ASSIGN_OR_RETURN(SpecModel baseline, workspace->MakeModel("none"));
  // Before a calibration, which takes long.
  const int64_t n_window = std::ssize(text.windows.front());
  const int64_t needed =
      PeakSequenceBytes(baseline.model->layout(), n_window, kChunkTokens, n_window / 2);
  if (needed > workspace->kv_budget_bytes()) {
    return Error(StatusCode::kResourceExhausted,
                 "a window of {} tokens needs {} of KV memory for --kv none and the budget is {}; "
                 "raise --kv-memory or give a smaller -c",
                 n_window, FormatBytes(needed), FormatBytes(workspace->kv_budget_bytes()));
  }
  spec_models.push_back(std::move(baseline));
  for (const auto& [kv, rate] : caches) {
    KVL_ASSIGN_OR_RETURN(SpecModel spec_model, workspace->MakeModel(kv, rate));
    KVL_RETURN_IF_ERROR(PredictKlOf(workspace, &spec_model));
    spec_models.push_back(std::move(spec_model));
  }
  std::vector<Model*> models;
  for (const SpecModel& m : spec_models) models.push_back(m.model.get());
  KVL_ASSIGN_OR_RETURN(const std::vector<Quality> qualities,
                       MeasureQuality(models, text, workspace->kv_budget_bytes(),
                                      workspace->threads(), workspace->progress()));
  Comparison comparison{workspace->options().model, options.text_path, text.n_scored(), {}};
  std::vector<ComparedLoss> losses;
  for (size_t i = 1; i < spec_models.size(); ++i) {
    std::optional<Latency> latency;
    if (options.measures_latency) {
      KVL_ASSIGN_OR_RETURN(
          latency, MeasureLatency(models[i], text.windows.front(), workspace->kv_budget_bytes(),
                                  /*n_repetitions=*/3));
    }
    comparison.rows.push_back({spec_models[i].spec.text(), spec_models[i].spec.ToString(),
                               caches[i - 1].rate, qualities[i], latency,
                               spec_models[i].predicted_kl});
    losses.push_back({qualities[i].kl, spec_models[i].predicted_kl.value_or(0)});
  }
  if (auto warning = WarningOfFarText(losses, options.text_path, workspace->options().model)) {
    workspace->Notify(Note::Kind::kWarning, *std::move(warning));
  }
  spec_models.erase(spec_models.begin());
  return ComparisonRun{std::move(comparison), std::move(spec_models), text.windows.front()};
}

}  // namespace kvlathe
