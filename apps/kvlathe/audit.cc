// kvlathe audit: what caches lost in the answers of a server, from its log.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "evaluation/audit/answer_log.h"
#include "evaluation/audit/audit_figures.h"
#include "kvlathe/open_workspace.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

struct AuditVerbOptions {
  ModelOptions model;
  std::string log;
};

// What a log holds.
struct LogContents {
  int64_t n_answers = 0;
  std::vector<std::string> specs;  // that gave them, each once
};

// Reads the log once, before anything that takes long: whether all of it can be replayed.
StatusOr<LogContents> CheckLog(const std::string& path, const Workspace& workspace) {
  KVL_ASSIGN_OR_RETURN(AnswerLogReader reader, AnswerLogReader::Open(path));
  LogContents contents;
  for (;;) {
    KVL_ASSIGN_OR_RETURN(const std::optional<LoggedAnswer> logged, reader.Next());
    if (!logged.has_value()) break;
    if (logged->model_hash != workspace.model_hash()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}:{}: this answer is of another model than {} ('{}' against '{}'); give the "
                   "model of the server",
                   path, reader.line_number(), workspace.options().model, logged->model_hash,
                   workspace.model_hash());
    }
    const Status fits = CheckAnswer(logged->answer, workspace.config().vocab_size);
    if (!fits.ok()) {
      return Error(StatusCode::kDataLoss, "{}:{}: {}", path, reader.line_number(), MessageOf(fits));
    }
    ++contents.n_answers;
    if (std::find(contents.specs.begin(), contents.specs.end(), logged->kv) ==
        contents.specs.end()) {
      contents.specs.push_back(logged->kv);
    }
  }
  if (contents.n_answers > 0) return contents;
  return Error(StatusCode::kInvalidArgument,
               "{}: no answer is in it; start the server with --log-tokens, and keep what it "
               "writes on standard error",
               path);
}

// Replays answers with caches of one model, and prints each.
class LogAudit {
 public:
  LogAudit(Workspace* workspace, bool prints_json)
      : workspace_(workspace), prints_json_(prints_json) {}

  Status MakeModels(const std::vector<std::string>& specs) {
    for (const std::string& kv : specs) {
      KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
      workspace_->Expect(spec);
    }
    KVL_ASSIGN_OR_RETURN(none_, workspace_->MakeModel("none"));
    for (const std::string& kv : specs) {
      KVL_ASSIGN_OR_RETURN(models_[kv], workspace_->MakeModel(kv));
    }
    budget_bytes_ = workspace_->kv_budget_bytes();
    pool_.emplace(budget_bytes_, &workspace_->weights().machine().memory());
    return OkStatus();
  }

  Status Replay(const LoggedAnswer& logged, const std::string& kv) {
    Model* const model = models_.at(kv).model.get();
    const CacheLayout* layout = &model->layout();
    if (logged.rate.has_value() && kv == logged.kv) {
      KVL_ASSIGN_OR_RETURN(layout, model->LayoutAt(*logged.rate));
    }
    const std::string label =
        AuditLabel(kv, kv == logged.kv ? logged.rate : std::optional<double>());
    if (logged.answer.n_answer() == 0) return Skip(logged, label, "the answer is empty");
    if (std::ssize(logged.answer.tokens) > model->config().max_seq_len) {
      return Skip(logged, label, "it is longer than the context");
    }
    const int64_t needed = AnswerReplay::PeakBytes(logged.answer, *none_.model, *layout);
    if (needed > budget_bytes_) {
      return Skip(logged, label,
                  fmt::format("it needs {} of KV memory and the budget is {}", FormatBytes(needed),
                              FormatBytes(budget_bytes_)));
    }
    AnswerReplay replay(logged.answer, none_.model.get(), model, layout, &*pool_);
    while (!replay.is_done()) KVL_RETURN_IF_ERROR(replay.Step(workspace_->threads()));
    AuditFigures figures;
    figures.Add(replay.score());
    figures_[label].Add(replay.score());
    PrintAnswer(logged, label, figures);
    return OkStatus();
  }

  void PrintHead() const {
    if (prints_json_) return;
    fmt::print("{:<24}  {:>6}  {:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {:>9}  {}\n", "answer", "read",
               "tokens", "KL", "median", "99.9%", "top-1 %", "parted at", "kv");
  }

  void PrintSummary() const {
    if (prints_json_) {
      Json rows = Json::array();
      for (const auto& [label, figures] : figures_) {
        Json row = {{"kv", label}};
        row.update(ToJson(figures));
        rows.push_back(std::move(row));
      }
      fmt::print("{}\n", Json{{"model", workspace_->options().model},
                              {"skipped", n_skipped_},
                              {"rows", std::move(rows)}}
                             .dump());
      return;
    }
    fmt::print("\n{:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {:>6}  {:>9}  {}\n", "answers",
               "positions", "KL", "median", "99.9%", "top-1 %", "parted", "at (mean)", "kv");
    for (const auto& [label, f] : figures_) {
      fmt::print("{:>7}  {:>9}  {:>9.6f}  {:>9.6f}  {:>9.6f}  {:>7.2f}  {:>6}  {:>9}  {}\n",
                 f.n_answers(), f.n_positions(), f.mean_kl(), f.KlQuantile(0.5),
                 f.KlQuantile(0.999), 100 * f.top1_agreement(), f.n_parted(),
                 f.n_parted() > 0 ? fmt::format("{:.1f}", f.mean_parted_at()) : "-", label);
    }
    if (n_skipped_ > 0) fmt::print("{} skipped\n", n_skipped_);
  }

 private:
  void PrintAnswer(const LoggedAnswer& logged, const std::string& label,
                   const AuditFigures& figures) const {
    if (prints_json_) {
      Json json = {{"id", logged.id}, {"kv", label}, {"read", logged.answer.n_read}};
      json.update(ToJson(figures));
      for (const char* const of_many : {"answers", "parted"}) json.erase(of_many);
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("{:<24}  {:>6}  {:>6}  {:>9.6f}  {:>9.6f}  {:>9.6f}  {:>7.2f}  {:>9}  {}\n",
                 logged.id, logged.answer.n_read, figures.n_positions(), figures.mean_kl(),
                 figures.KlQuantile(0.5), figures.KlQuantile(0.999), 100 * figures.top1_agreement(),
                 figures.n_parted() > 0 ? fmt::format("{:.0f}", figures.mean_parted_at()) : "-",
                 label);
    }
    std::fflush(stdout);  // as it comes
  }

  Status Skip(const LoggedAnswer& logged, const std::string& label, const std::string& why) {
    ++n_skipped_;
    if (prints_json_) {
      fmt::print("{}\n", Json{{"id", logged.id}, {"kv", label}, {"skipped", why}}.dump());
    } else {
      fmt::print("{:<24}  skipped: {}\n", logged.id, why);
    }
    return OkStatus();
  }

  Workspace* workspace_;
  bool prints_json_;
  int64_t budget_bytes_ = 0;
  std::optional<BlockPool> pool_;  // once the models are made
  SpecModel none_;
  std::map<std::string, SpecModel> models_;
  std::map<std::string, AuditFigures> figures_;  // by label
  int64_t n_skipped_ = 0;
};

Status AuditLog(const AuditVerbOptions& options) {
  KVL_RETURN_IF_ERROR(AnswerLogReader::Open(options.log).status());
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  KVL_ASSIGN_OR_RETURN(const LogContents contents, CheckLog(options.log, *workspace));
  const std::vector<std::string>& named = options.model.kv;
  LogAudit audit(workspace.get(), options.model.json);
  KVL_RETURN_IF_ERROR(audit.MakeModels(named.empty() ? contents.specs : named));
  KVL_ASSIGN_OR_RETURN(AnswerLogReader reader, AnswerLogReader::Open(options.log));
  audit.PrintHead();
  for (;;) {
    KVL_ASSIGN_OR_RETURN(const std::optional<LoggedAnswer> logged, reader.Next());
    if (!logged.has_value()) break;
    for (const std::string& kv : named.empty() ? std::vector{logged->kv} : named) {
      const Status status = audit.Replay(*logged, kv);
      if (status.ok()) continue;
      return Error(status.code(), "{}:{}: {}", options.log, reader.line_number(),
                   MessageOf(status));
    }
  }
  audit.PrintSummary();
  return OkStatus();
}

}  // namespace

void AddAuditVerb(Verbs* verbs) {
  auto options = std::make_shared<AuditVerbOptions>();
  CLI::App* verb = verbs->Add(
      "audit", "How far a server's answers are from those without compression, from its log",
      "kvlathe audit server.log -m models/fetched/smollm2.gguf",
      [options] { return AuditLog(*options); });
  options->model.exact_rows = true;  // as kvlathe compare does
  verb->add_option("LOG", options->log, "what kvlathe serve --log-tokens wrote on standard error")
      ->required();
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "for each answer the cache that gave it");
}

}  // namespace kvlathe
