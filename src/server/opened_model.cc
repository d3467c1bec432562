#include "server/opened_model.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "chat/chat_ends.h"
#include "runtime/spec_models.h"

namespace kvlathe::server {
namespace {

// Grammars end where chats do: at the ends of the template too.
StatusOr<std::unique_ptr<Grammars>> MakeGrammars(const ServingModel& model) {
  std::vector<int32_t> end_ids = model.end_ids;
  const Tokenizer& tokenizer = model.workspace->tokenizer();
  if (model.chat_template.has_value()) {
    const ChatEnds ends =
        FindChatEnds(tokenizer, model.chat_template->answer_format(/*has_tools=*/false).ends);
    for (const int32_t id : ends.ids) {
      if (std::ranges::find(end_ids, id) == end_ids.end()) end_ids.push_back(id);
    }
  }
  return Grammars::Make(tokenizer,
                        {.n_logits = model.workspace->config().vocab_size, .end_ids = end_ids});
}

}  // namespace

OpenedModel::OpenedModel(std::unique_ptr<ServingModel> model)
    : model_(std::move(model)), tool_support_(chat_template(), MakeGrammars(*model_)) {}

ServedModel OpenedModel::Describe(std::vector<std::string> names, const api::ApiLimits& limits,
                                  const EngineOptions& engine) {
  const Workspace& workspace = *model_->workspace;
  ServedModel described;
  described.api = {.tokenizer = &workspace.tokenizer(),
                   .chat_template = chat_template(),
                   .reads_control_tokens = model_->reads_control_tokens,
                   .tool_support = &tool_support_,
                   .model_names = std::move(names),
                   .created = static_cast<int64_t>(std::time(nullptr)),
                   .context_tokens = workspace.context_tokens(),
                   .end_ids = model_->end_ids,
                   .limits = limits};
  described.api.sampling = model_->sampling;
  if (described.api.model_names.empty()) described.api.model_names = {model_->name};
  described.api.chat_adds_bos = model_->chat_adds_bos;
  for (const SpecModel& level : model_->levels) {
    described.levels.push_back(level.model.get());
    described.api.levels.push_back({level.spec.text(), level.model.get()});
  }
  described.pool = &*model_->pool;
  described.engine = engine;
  described.model_hash = workspace.model_hash();
  described.device = workspace.device_name();
  described.none = model_->uncompressed();
  described.threads = model_->workspace->threads();
  return described;
}

StatusOr<std::vector<SequenceIdentity>> OpenedModel::Identities() const {
  std::vector<SequenceIdentity> identities;
  for (const SpecModel& level : model_->levels) {
    KVL_ASSIGN_OR_RETURN(SequenceIdentity identity, IdentityOf(model_->workspace.get(), level));
    identities.push_back(std::move(identity));
  }
  return identities;
}

}  // namespace kvlathe::server
