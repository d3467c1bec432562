// POST /slots/{id}: what a slot held last is saved by name, comes back from there, or is forgotten.
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "server/api/api_error.h"
#include "server/api/request_fields.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

StatusOr<int> SlotIdOf(const ServiceState& state, std::string_view text) {
  int id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const int n_slots = state.context().n_slots;
  if (error != std::errc() || end != text.data() + text.size() || id < 0 || id >= n_slots) {
    return Error(StatusCode::kNotFound, "/slots/{}: there are slots 0 to {}", text, n_slots - 1);
  }
  return id;
}

StatusOr<std::string> NameIn(const ServiceState& state, const Exchange& exchange) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange.request().body));
  RequestFields fields(json);
  const auto name = fields.String("filename");
  KVL_RETURN_IF_ERROR(fields.status());
  if (name.has_value()) return *name;
  return Error(StatusCode::kInvalidArgument, "filename: give a name to save or restore");
}

Status SaveSlot(const ServiceState& state, const ExchangePtr& exchange, int id) {
  const Stopwatch watch;
  KVL_ASSIGN_OR_RETURN(const std::string name, NameIn(state, *exchange));
  const std::string& tenant = exchange->request().tenant;
  const std::optional<SavedPrompt> held = state.slots().Held(tenant, id);
  if (!held.has_value()) {
    return Error(StatusCode::kNotFound,
                 "/slots/{}: it has held nothing yet; send a request with \"id_slot\": {}", id, id);
  }
  KVL_ASSIGN_OR_RETURN(const int64_t n_bytes, state.saved_prompts().Save(tenant, name, *held));
  exchange->Send({{"id_slot", id},
                  {"filename", name},
                  {"n_saved", held->tokens.size()},
                  {"n_written", n_bytes},
                  {"timings", {{"save_ms", watch.Milliseconds()}}}});
  return OkStatus();
}

// A request for one token behind what was saved has the store find it, in memory or on disk, and
// computes what neither has any more.
Status RestoreSlot(const ServiceState& state, const ExchangePtr& exchange, int id) {
  KVL_ASSIGN_OR_RETURN(const std::string name, NameIn(state, *exchange));
  const std::string& tenant = exchange->request().tenant;
  KVL_ASSIGN_OR_RETURN(SavedPrompt saved, state.saved_prompts().Load(tenant, name));
  KVL_ASSIGN_OR_RETURN(const int level, state.FindLevel(saved.kv));
  KVL_RETURN_IF_ERROR(state.CheckLength(std::ssize(saved.tokens), 1, "filename"));
  Request request;
  request.prompt = saved.tokens;
  request.max_tokens = 1;
  request.level = level;
  request.rate = saved.rate;
  request.prefix_salt = tenant;
  const auto on_finish = [&state, exchange, id, name, saved = std::move(saved),
                          watch = Stopwatch()](Engine::RequestId,
                                               const RequestOutcome& outcome) mutable {
    const int64_t n_tokens = std::ssize(saved.tokens);
    if (outcome.status.ok()) {
      state.slots().Remember(exchange->request().tenant, id, std::move(saved));
    }
    exchange->reply()->Post([exchange, id, name, n_tokens, watch, status = outcome.status,
                             n_stored = outcome.n_prefix_tokens] {
      if (!status.ok()) return exchange->SendError(ApiErrorOf(status, /*is_refusal=*/false));
      exchange->Send({{"id_slot", id},
                      {"filename", name},
                      {"n_restored", n_tokens},
                      {"n_computed", n_tokens - n_stored},
                      {"timings", {{"restore_ms", watch.Milliseconds()}}}});
    });
  };
  return state.context().engine->Submit(std::move(request), nullptr, on_finish).status();
}

Status ActOnSlot(const ServiceState& state, const ExchangePtr& exchange, const std::string& text) {
  KVL_ASSIGN_OR_RETURN(const int id, SlotIdOf(state, text));
  const std::string& query = exchange->request().query;
  if (query == "action=save") return SaveSlot(state, exchange, id);
  if (query == "action=restore") return RestoreSlot(state, exchange, id);
  if (query == "action=erase") {
    const int64_t n_erased = state.slots().Forget(exchange->request().tenant, id);
    exchange->Send({{"id_slot", id}, {"n_erased", n_erased}});
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "/slots/{}: say what to do, ?action=save, ?action=restore or ?action=erase", id);
}

}  // namespace

void HandleSlot(const ServiceState& state, const ExchangePtr& exchange, const std::string& id) {
  if (const Status status = ActOnSlot(state, exchange, id); !status.ok()) {
    exchange->SendError(status);
  }
}

}  // namespace kvlathe::api
