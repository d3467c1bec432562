// /v1/models: what the server runs.
#include <algorithm>

#include "kv/cache_layout.h"
#include "server/api/api_error.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

Json ModelJson(const ServiceState& state, const std::string& name) {
  const ApiContext& context = state.context();
  Json levels = Json::array();
  for (const ApiLevel& level : context.levels) levels.push_back(level.name);
  const ModelConfig& config = context.levels.front().model->config();
  return {{"id", name},
          {"object", "model"},
          {"created", context.created},
          {"owned_by", "kvlathe"},
          {"root", context.model_names.front()},
          {"max_model_len", context.context_tokens},
          {"kv_levels", std::move(levels)},
          {"meta",
           {{"n_vocab", config.vocab_size},
            {"n_ctx_train", config.max_seq_len},
            {"n_embd", config.hidden_dim}}}};
}

}  // namespace

void HandleModels(const ServiceState& state, const ExchangePtr& exchange) {
  Json data = Json::array();
  for (const std::string& name : state.context().model_names) {
    data.push_back(ModelJson(state, name));
  }
  exchange->Send({{"object", "list"}, {"data", std::move(data)}});
}

void HandleModel(const ServiceState& state, const ExchangePtr& exchange, const std::string& id) {
  const StatusOr<int> found = state.FindModel(id);
  if (!found.ok()) return exchange->SendError(found.status());
  exchange->Send(ModelJson(state, id));
}

}  // namespace kvlathe::api
