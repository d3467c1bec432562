#include "kvlathe/eval/eval_drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "kvlathe/open_workspace.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

struct DriftRow {
  std::string kv, kv_resolved;
  std::optional<double> predicted_kl;  // where it decided the cache
  Drift drift;
};

Json OrNull(const std::optional<double>& number) {
  return number.has_value() ? Json(*number) : Json(nullptr);
}

Json ToJson(const DriftRow& row, const DriftOptions& options) {
  const Drift& d = row.drift;
  Json json = {{"kv", row.kv},
               {"kv_resolved", row.kv_resolved},
               {"kv_fraction", d.kv_fraction},
               {"prompts", options.n_prompts},
               {"prompt_tokens", options.prompt_tokens},
               {"tokens", options.n_tokens},
               {"parted_at", d.mean_parted_at},
               {"parted_at_median", d.median_parted_at},
               {"never_parted", d.n_never_parted},
               {"kl", d.kl},
               {"kl_stderr", OrNull(d.kl_stderr)},
               {"kl_over_steps", d.kl_over_steps},
               {"top1_agreement", d.top1_agreement},
               {"text_nll", OrNull(d.text_nll)},
               {"own_nll", OrNull(d.own_nll)},
               {"repeats", d.repeats},
               {"none_repeats", d.none_repeats}};
  if (row.predicted_kl.has_value()) json["predicted_kl"] = *row.predicted_kl;
  return json;
}

std::string Cell(const std::optional<double>& number) {
  return number.has_value() ? fmt::format("{:.4f}", *number) : "-";
}

std::string ToTable(const std::vector<DriftRow>& rows, const DriftOptions& options) {
  size_t width = 2;
  for (const DriftRow& row : rows) width = std::max(width, row.kv.size());
  std::string table =
      fmt::format("{:<{}}  {:>9}  {:>17}  {:>6}  {:>20}  {:>6}  {:>18}  {:>15}\n", "", width, "",
                  "parted at", "never", "", "", "NLL under none", "repeats %");
  table += fmt::format(
      "{:<{}}  {:>9}  {:>8} {:>8}  {:>6}  {:>20}  {:>6}  {:>8} {:>9}  {:>7} {:>7}\n", "kv", width,
      "KV size %", "mean", "median", "parted", "KL", "top-1 %", "text", "its own", "text", "none");
  for (const DriftRow& row : rows) {
    const Drift& d = row.drift;
    table += fmt::format(
        "{:<{}}  {:>9.2f}  {:>8.1f} {:>8.1f}  {:>6}  {:>20}  {:>7.2f}  {:>8} {:>9}  {:>7.2f} "
        "{:>7.2f}\n",
        row.kv, width, 100 * d.kv_fraction, d.mean_parted_at, d.median_parted_at,
        fmt::format("{}/{}", d.n_never_parted, options.n_prompts),
        fmt::format("{:.6f} +- {}", d.kl,
                    d.kl_stderr.has_value() ? fmt::format("{:.6f}", *d.kl_stderr) : "-"),
        100 * d.top1_agreement, Cell(d.text_nll), Cell(d.own_nll), 100 * d.repeats,
        100 * d.none_repeats);
  }
  table += fmt::format("\n{:<{}}  KL of each eighth of the tokens\n", "kv", width);
  for (const DriftRow& row : rows) {
    table += fmt::format("{:<{}} ", row.kv, width);
    for (const double kl : row.drift.kl_over_steps) table += fmt::format(" {:>9.6f}", kl);
    table += "\n";
  }
  return table;
}

// Before a calibration, which takes long.
Status CheckRoom(const Workspace& workspace, const CacheLayout& layout,
                 const DriftOptions& options) {
  const int64_t needed =
      options.n_prompts * PeakSequenceBytes(layout, options.prompt_tokens + options.n_tokens - 1,
                                            kChunkTokens, options.prompt_tokens);
  if (needed <= workspace.kv_budget_bytes()) return OkStatus();
  return Error(StatusCode::kResourceExhausted,
               "{} sequences of {} tokens need {} of KV memory for --kv none and the budget is {}; "
               "raise --kv-memory or give fewer --drift-prompts or --drift-tokens",
               options.n_prompts, options.prompt_tokens + options.n_tokens, FormatBytes(needed),
               FormatBytes(workspace.kv_budget_bytes()));
}

StatusOr<std::vector<DriftRow>> Measure(Workspace* workspace, const std::vector<std::string>& specs,
                                        const DriftEvalOptions& options) {
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, workspace->TokenizeFile(options.text));
  KVL_ASSIGN_OR_RETURN(const DriftPlan plan, PlanDrift(tokens, workspace->leading_bos(),
                                                       options.drift, workspace->context_tokens()));
  KVL_ASSIGN_OR_RETURN(const SpecModel none, workspace->MakeModel("none"));
  KVL_RETURN_IF_ERROR(CheckRoom(*workspace, none.model->layout(), options.drift));
  std::vector<SpecModel> spec_models;
  std::vector<Model*> models;
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(SpecModel spec_model, workspace->MakeModel(kv));
    models.push_back(spec_model.model.get());
    spec_models.push_back(std::move(spec_model));
  }
  KVL_ASSIGN_OR_RETURN(DriftResult result,
                       MeasureDrift(none.model.get(), models, plan, workspace->kv_budget_bytes(),
                                    workspace->threads(), workspace->progress()));
  std::vector<DriftRow> rows;
  for (size_t i = 0; i < specs.size(); ++i) {
    rows.push_back({specs[i], spec_models[i].spec.ToString(), spec_models[i].predicted_kl,
                    std::move(result.drifts[i])});
  }
  return rows;
}

}  // namespace

void AddDriftOptions(CLI::App* verb, DriftEvalOptions* options) {
  CLI::Option* const text =
      verb->add_option("--drift", options->text,
                       "text on whose beginnings it is measured where free generation parts from "
                       "the uncompressed model's, and how far it goes");
  DriftOptions* const drift = &options->drift;
  verb->add_option("--drift-tokens", drift->n_tokens, "tokens generated behind each prompt")
      ->check(CLI::Range(kStretches, 1 << 24))
      ->capture_default_str()
      ->needs(text);
  verb->add_option("--drift-prompts", drift->n_prompts, "pieces of the text that are prompts")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->needs(text);
  verb->add_option("--drift-prompt-tokens", drift->prompt_tokens, "tokens of each prompt")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str()
      ->needs(text);
}

Status EvalDrift(const ModelOptions& model, const DriftEvalOptions& options) {
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(model));
  const std::vector<std::string> specs =
      model.kv.empty() ? std::vector<std::string>{"none"} : model.kv;
  KVL_ASSIGN_OR_RETURN(const std::vector<DriftRow> rows, Measure(workspace.get(), specs, options));
  if (!model.json) {
    fmt::print("{} prompts of {} tokens, {} tokens generated behind each\n\n{}",
               options.drift.n_prompts, options.drift.prompt_tokens, options.drift.n_tokens,
               ToTable(rows, options.drift));
  } else if (rows.size() == 1) {
    fmt::print("{}\n", ToJson(rows[0], options.drift).dump());
  } else {
    Json list = Json::array();
    for (const DriftRow& row : rows) list.push_back(ToJson(row, options.drift));
    fmt::print("{}\n", Json{{"model", model.model}, {"rows", std::move(list)}}.dump());
  }
  return OkStatus();
}

}  // namespace kvlathe
