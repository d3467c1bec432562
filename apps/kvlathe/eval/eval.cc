// kvlathe eval: perplexity or KL divergence of one spec on a text, drift of free generation, or
// scores on tasks.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvlathe/eval/eval_drift.h"
#include "kvlathe/eval/eval_task.h"
#include "kvlathe/open_workspace.h"
#include "runtime/prediction_notes.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

struct EvalOptions {
  ModelOptions model;
  std::string perplexity_text;
  std::string kl_text;
  std::string reference;  // model of the distributions that kl is measured against; empty: the same
  DriftEvalOptions drift;
  TaskEvalOptions task;
};

// The reference's cache, uncompressed, and what keeps it.
struct Reference {
  std::unique_ptr<Workspace> workspace;  // none where it is the model itself
  SpecModel model;
};

StatusOr<Reference> OpenReference(const EvalOptions& options, Workspace* workspace,
                                  std::span<const int32_t> tokens) {
  Reference reference;
  if (options.reference.empty()) {
    KVL_ASSIGN_OR_RETURN(reference.model, workspace->MakeModel("none"));
    return reference;
  }
  ModelOptions model = options.model;
  model.model = options.reference;
  model.kv = {"none"};
  model.basis.clear();
  model.profile.clear();
  if (model.device_text != "cpu") {  // which has one model's weights and caches already
    PrintNote({Note::Kind::kNote,
               fmt::format("--reference {} runs on the processors", options.reference)});
    model.device_text = "cpu";
    model.device_memory.clear();
  }
  KVL_ASSIGN_OR_RETURN(reference.workspace, OpenWorkspace(model));
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> same,
                       reference.workspace->TokenizeFile(options.kl_text));
  const bool reads_alike = std::equal(tokens.begin(), tokens.end(), same.begin(), same.end()) &&
                           reference.workspace->leading_bos() == workspace->leading_bos();
  if (!reads_alike || reference.workspace->config().vocab_size != workspace->config().vocab_size) {
    return Error(StatusCode::kInvalidArgument,
                 "--reference {} and -m {} have different tokenizers; distributions over different "
                 "tokens have no KL",
                 options.reference, options.model.model);
  }
  KVL_ASSIGN_OR_RETURN(reference.model, reference.workspace->MakeModel("none"));
  return reference;
}

Json ToJson(const std::string& kv, const SpecModel& spec_model, const Quality& q, bool with_kl) {
  Json json = {{"kv", kv},
               {"kv_resolved", spec_model.spec.ToString()},
               {"kv_fraction", q.kv_fraction},
               {"kv_bytes_per_token", q.kv_bytes_per_token},
               {"perplexity", q.perplexity},
               {"bits_per_byte", q.bits_per_byte}};
  json["kl"] = with_kl ? Json(q.kl) : Json(nullptr);
  if (with_kl) {
    json["kl_stderr"] = q.kl_stderr;
    json["kl_median"] = q.kl_tail.median;
    json["kl_p99"] = q.kl_tail.p99;
    json["kl_p999"] = q.kl_tail.p999;
    json["kl_worst_window"] = q.kl_tail.worst_window;
  }
  json["tokens"] = q.n_tokens;
  if (spec_model.predicted_kl.has_value()) json["predicted_kl"] = *spec_model.predicted_kl;
  return json;
}

Status EvalText(const EvalOptions& options) {
  const bool with_kl = !options.kl_text.empty();
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "eval takes one --kv on a text; kvlathe compare takes several");
  }
  const std::string kv = options.model.kv.empty() ? "none" : options.model.kv.front();
  KVL_RETURN_IF_ERROR(Spec::Parse(kv).status());
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  const Tokenizer& tokenizer = workspace->tokenizer();
  KVL_ASSIGN_OR_RETURN(
      const std::vector<int32_t> tokens,
      workspace->TokenizeFile(with_kl ? options.kl_text : options.perplexity_text));
  KVL_ASSIGN_OR_RETURN(
      const EvaluationText text,
      CutIntoWindows(
          tokens, [&](int32_t id) { return static_cast<int>(tokenizer.TokenBytes(id).size()); },
          workspace->leading_bos(), workspace->window_tokens()));
  Reference reference;
  if (with_kl) {
    KVL_ASSIGN_OR_RETURN(reference, OpenReference(options, workspace.get(), tokens));
  }
  KVL_ASSIGN_OR_RETURN(SpecModel spec_model, workspace->MakeModel(kv));
  if (with_kl) KVL_RETURN_IF_ERROR(PredictKlOf(workspace.get(), &spec_model));
  std::vector<Model*> models = {spec_model.model.get()};
  if (with_kl) models.insert(models.begin(), reference.model.model.get());
  KVL_ASSIGN_OR_RETURN(const std::vector<Quality> qualities,
                       MeasureQuality(models, text, workspace->kv_budget_bytes(),
                                      workspace->threads(), workspace->progress()));
  const Quality& q = qualities.back();
  if (with_kl && options.reference.empty()) {
    const ComparedLoss loss = {q.kl, spec_model.predicted_kl.value_or(0)};
    PrintNote(Note::Kind::kWarning,
              WarningOfFarText({&loss, 1}, options.kl_text, options.model.model));
  }
  if (options.model.json) {
    fmt::print("{}\n", ToJson(kv, spec_model, q, with_kl).dump());
    return OkStatus();
  }
  fmt::print("--kv {}: {} scored tokens, KV size {:.2f}%, perplexity {:.4f}, {:.4f} bits per byte",
             kv, q.n_tokens, 100 * q.kv_fraction, q.perplexity, q.bits_per_byte);
  if (with_kl) {
    fmt::print(
        ", KL {:.6f} +- {:.6f} nats per token (median {:.6f}, 99% {:.4f}, worst window {:.6f})",
        q.kl, q.kl_stderr, q.kl_tail.median, q.kl_tail.p99, q.kl_tail.worst_window);
  }
  fmt::print("\n");
  return OkStatus();
}

Status Eval(const EvalOptions& options) {
  const std::vector<std::string>& tasks = options.task.choice.tasks;
  const bool has_task = !tasks.empty();
  const bool has_drift = !options.drift.text.empty();
  if (has_task + has_drift + !options.kl_text.empty() + !options.perplexity_text.empty() != 1) {
    return Error(StatusCode::kInvalidArgument,
                 "give one of --perplexity FILE, --kl FILE, --drift FILE and --task NAME");
  }
  const bool lists = std::find(tasks.begin(), tasks.end(), "list") != tasks.end();
  if (options.model.model.empty() && !lists) {
    return Error(StatusCode::kInvalidArgument,
                 "--model is required; give a model directory, a .gguf file or a name");
  }
  if (has_drift) return EvalDrift(options.model, options.drift);
  return has_task ? EvalTasks(options.model, options.task) : EvalText(options);
}

}  // namespace

void AddEvalVerb(Verbs* verbs) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb =
      verbs->Add("eval", "Perplexity, KL or drift on a text, or scores on tasks",
                 "kvlathe eval -m models/lathe-nano --kv 'lathe(ratio=4)' --kl novel.txt",
                 [options] { return Eval(*options); });
  options->model.exact_rows = true;  // what caches lose is not to drown in the rounding of rows
  AddModelOptions(verb, &options->model);
  verb->get_option("--model")->required(false);  // --task list needs none
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("--perplexity", options->perplexity_text, "text whose perplexity is measured");
  CLI::Option* const kl = verb->add_option(
      "--kl", options->kl_text, "text on which KL to the uncompressed model is measured");
  verb->add_option("--reference", options->reference,
                   "model that KL is measured to, uncompressed, in place of -m: what a retrofit "
                   "and its cache cost together")
      ->needs(kl);
  AddDriftOptions(verb, &options->drift);
  AddTaskOptions(verb, &options->task);
}

}  // namespace kvlathe
