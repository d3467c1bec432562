#include "runtime/serving_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "hub/hub_model.h"
#include "io/files.h"
#include "runtime/cache_loss.h"
#include "runtime/end_ids.h"

namespace kvlathe {
namespace {

StatusOr<std::optional<ChatTemplate>> FindTemplate(const ServingOptions& options,
                                                   const Workspace& workspace) {
  if (options.chat.choice.empty() && options.open.model.empty()) return std::nullopt;
  StatusOr<ChatTemplate> found =
      FindChatTemplate(options.chat, workspace.options().model, workspace.tokenizer());
  if (found.ok()) {
    for (const std::string& note : found->Notes()) workspace.Notify(Note::Kind::kNote, note);
    return *std::move(found);
  }
  if (!options.chat.choice.empty() || found.status().code() == StatusCode::kDataLoss) {
    return found.status();
  }
  workspace.Notify(Note::Kind::kNote,
                   fmt::format("no /v1/chat/completions: {}", MessageOf(found.status())));
  return std::nullopt;
}

// "SmolLM2-135M.Q8_0" of SmolLM2-135M.Q8_0.gguf, "lathe-nano" of models/lathe-nano/, "SmolLM2-135M"
// of the directory that is hf:HuggingFaceTB/SmolLM2-135M.
std::string NameOfModel(const ServingOptions& options, const Workspace& workspace) {
  const std::string& named = options.open.model;
  std::string path = named.empty() ? options.random_config : workspace.options().model;
  // In the cache it has the name of a commit.
  if (NamesHubModel(named) && DirectoryExists(path)) path = named;
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

}  // namespace

StatusOr<std::unique_ptr<Workspace>> OpenServedWorkspace(const ServingOptions& options) {
  if (options.random_config.empty()) return Workspace::Open(options.open);
  return Workspace::OpenRandomWithTokenizer(options.random_config, options.tokenizer, options.open);
}

Model* ServingModel::uncompressed() const {
  for (const SpecModel& level : levels) {
    if (level.spec.is_none()) return level.model.get();
  }
  return none.has_value() ? none->model.get() : nullptr;
}

StatusOr<std::unique_ptr<ServingModel>> OpenServingModel(const ServingOptions& options) {
  auto serving = std::make_unique<ServingModel>();
  KVL_ASSIGN_OR_RETURN(serving->workspace, OpenServedWorkspace(options));
  Workspace* const workspace = serving->workspace.get();
  KVL_ASSIGN_OR_RETURN(serving->chat_template, FindTemplate(options, *workspace));
  serving->chat_adds_bos = !options.chat.choice.empty() && serving->chat_template.has_value() &&
                           !serving->chat_template->prints_bos();
  serving->reads_control_tokens = options.chat.reads_control_tokens;
  serving->end_ids = EndIds(*workspace);
  const bool is_random = !options.random_config.empty();
  KVL_ASSIGN_OR_RETURN(serving->sampling,
                       DefaultSampling(is_random ? "" : workspace->options().model));
  std::vector<std::string> specs = options.open.kv;
  if (specs.empty()) specs = {"none"};
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(SpecModel level, workspace->MakeModel(kv));
    serving->levels.push_back(std::move(level));
  }
  if (options.needs_none && serving->uncompressed() == nullptr) {
    KVL_ASSIGN_OR_RETURN(serving->none, workspace->MakeModel("none"));
  }
  if (!workspace->has_random_weights()) WarnOfLoss(workspace, serving->levels);
  int64_t budget = workspace->kv_budget_bytes();
  const bool takes_the_rest = !options.open.device.is_cpu() && options.open.kv_budget_bytes == 0;
  if (takes_the_rest) budget = std::max<int64_t>(1, budget - options.kv_bytes_beside);
  serving->pool.emplace(budget, &serving->levels.front().model->machine().memory());
  serving->name = NameOfModel(options, *workspace);
  return serving;
}

}  // namespace kvlathe
