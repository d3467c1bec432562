#include "comparison_run.h"

namespace kvlathe {

StatusOr<ComparisonRun> RunComparison(Workspace* workspace, const std::vector<std::string>& specs,
                                      const std::string& text_path) {
  // Specs first: a wrong one is refused before anything takes time.
  for (const std::string& kv : specs) KVL_RETURN_IF_ERROR(Spec::Parse(kv).status());
  const Tokenizer& tokenizer = workspace->tokenizer();
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, workspace->TokenizeFile(text_path));
  KVL_ASSIGN_OR_RETURN(
      const EvaluationText text,
      CutIntoWindows(
          tokens, [&](int32_t id) { return static_cast<int>(tokenizer.TokenBytes(id).size()); },
          workspace->leading_bos(), workspace->context_tokens()));

  std::vector<SpecModel> spec_models;  // the baseline first, whether it is in the table or not
  KVL_ASSIGN_OR_RETURN(SpecModel baseline, workspace->MakeModel("none"));
  spec_models.push_back(std::move(baseline));
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(SpecModel spec_model, workspace->MakeModel(kv));
    spec_models.push_back(std::move(spec_model));
  }
  std::vector<Model*> models;
  for (const SpecModel& m : spec_models) models.push_back(m.model.get());
  KVL_ASSIGN_OR_RETURN(const std::vector<Quality> qualities,
                       MeasureQuality(models, text, workspace->kv_budget_bytes(),
                                      workspace->threads(), workspace->progress()));
  Comparison comparison{workspace->options().model, text_path, text.n_scored(), {}};
  for (size_t i = 1; i < spec_models.size(); ++i) {
    KVL_ASSIGN_OR_RETURN(const Latency latency, MeasureLatency(models[i], text.windows.front(),
                                                               workspace->kv_budget_bytes(),
                                                               /*n_repetitions=*/3));
    comparison.rows.push_back(
        {spec_models[i].spec.text(), spec_models[i].spec.ToString(), qualities[i], latency});
  }
  spec_models.erase(spec_models.begin());
  return ComparisonRun{std::move(comparison), std::move(spec_models), text.windows.front()};
}

}  // namespace kvlathe
