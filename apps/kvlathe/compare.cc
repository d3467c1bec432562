// kvlathe compare: several specs on one model and text, in one table.
#include "evaluation/compare.h"

#include <fmt/format.h>

#include "workspace.h"

namespace kvlathe {
namespace {

struct CompareOptions {
  ModelOptions model;
  std::string text;
};

StatusOr<Comparison> Measure(Workspace* workspace, const std::vector<std::string>& specs,
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
                                                               workspace->kv_budget_bytes()));
    comparison.rows.push_back(
        {spec_models[i].spec.text(), spec_models[i].spec.ToString(), qualities[i], latency});
  }
  return comparison;
}

Status Compare(CompareOptions options) {
  if (options.model.kv.empty()) {
    options.model.kv = {"none", "fdc(rate=0.25)", "fdc(rate=0.5)", "fdc(rate=0.625)"};
  }
  if (options.text.empty()) options.text = options.model.model + "/sample.txt";
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(options.model));
  KVL_ASSIGN_OR_RETURN(const Comparison comparison,
                       Measure(workspace.get(), options.model.kv, options.text));
  if (options.model.json) {
    fmt::print("{}\n", ToJson(comparison).dump());
  } else {
    fmt::print("{}: {} scored tokens of {}\n\n{}\n", comparison.model, comparison.n_tokens,
               comparison.text, ToTable(comparison));
    fmt::print("KV bytes at a window's end, by part\n{}", ToPartsTable(comparison));
  }
  return OkStatus();
}

}  // namespace

void AddCompareVerb(Verbs* verbs) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* verb = verbs->Add(
      "compare", "Size, quality and speed of several caches on one model and text",
      "kvlathe compare -m models/lathe-nano --kv none --kv 'fdc(rate=0.5)' --text novel.txt",
      [options] { return Compare(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none and fdc at three rates");
  verb->add_option("--text", options->text,
                   "text to evaluate on (default: the model's sample.txt)");
}

}  // namespace kvlathe
