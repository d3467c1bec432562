#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "engine/drafts/draft_room.h"
#include "server/page/page.h"
#include "server/prefill/prompt_question.h"

namespace kvlathe::server {

namespace {

// How many positions of the first level the KV budget holds. It counts bytes per position as they
// are where a sequence has filled the model's context.
int64_t PositionsOf(const BlockPool& pool, const Model& model) {
  const int n_tokens = model.config().max_seq_len;
  const int64_t bytes = std::max<int64_t>(SequenceBytes(model.layout(), n_tokens), 1);
  return static_cast<int64_t>(static_cast<double>(pool.usage().budget_bytes) * n_tokens /
                              static_cast<double>(bytes));
}

std::vector<std::string> NamesOf(const std::vector<api::ApiLevel>& levels) {
  std::vector<std::string> names;
  for (const api::ApiLevel& level : levels) names.push_back(level.name);
  return names;
}

EngineOptions Observed(EngineOptions options, EngineObserver* observer, PromptReaders* readers) {
  options.observer = observer;
  options.readers = readers;
  return options;
}

int32_t ProbeToken(const Tokenizer& tokenizer) { return tokenizer.bos_id().value_or(0); }

bool IsHealthRoute(const http::Request& request) {
  return (request.method == "GET" || request.method == "HEAD") &&
         (request.path == "/health" || request.path == "/v1/health");
}

// What vLLM calls it.
std::string_view FinishedReason(const api::RequestEnded& ended) {
  if (ended.finish_reason == "tool_calls") return "stop";
  if (ended.finish_reason == "cancelled") return "abort";
  return ended.finish_reason;
}

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::Start(ServedModel served, ServerOptions options) {
  auto server = std::unique_ptr<Server>(new Server(std::move(served), std::move(options)));
  const auto handle = [s = server.get()](http::Request request,
                                         std::shared_ptr<http::Reply> reply) {
    s->Handle(std::move(request), std::move(reply));
  };
  server->options_.http.on_refusal = [s = server.get()](const http::Refusal& refusal) {
    s->metrics_.CountAnswer("refused", refusal.status);
    s->log_.Write("refused", {{"request_id", refusal.id},
                              {"peer", refusal.peer},
                              {"status", refusal.status},
                              {"why", refusal.message}});
  };
  server->options_.http.cors_origins = server->options_.origins.cors_origins;
  server->engine_.Start();
  KVL_ASSIGN_OR_RETURN(server->http_, http::HttpServer::Start(server->options_.http, handle));
  if (server->options_.agent_port.has_value()) {
    const auto line = [s = server.get()] { return s->AgentLine(); };
    const http::AgentPort::Options at = {server->options_.http.host, *server->options_.agent_port};
    KVL_ASSIGN_OR_RETURN(server->agent_, http::AgentPort::Start(*server->http_, at, line));
  }
  server->is_started_ = true;  // before the log says so: whoever reads it may ask at once
  server->LogListening();
  return server;
}

Server::Server(ServedModel served, ServerOptions options)
    : options_(std::move(options)),
      model_name_(served.api.model_names.front()),
      device_(served.device),
      model_hash_(served.model_hash),
      level_names_(NamesOf(served.api.levels)),
      log_(options_.log),
      keys_(options_.api_keys),
      origins_(options_.origins, options_.http.host, !options_.api_keys.empty()),
      metrics_(model_name_, device_, served.pool->usage().budget_bytes,
               PositionsOf(*served.pool, *served.levels.front())),
      monitor_(&metrics_, [this](const AnsweredRequest& answered) { OnAnswered(answered); }),
      auditor_(MakeAuditor(served)),
      archive_(served.engine.archive),
      prefill_client_(MakePrefillClient()),
      engine_(
          served.levels, served.pool, Observed(served.engine, &monitor_, prefill_client_.get()),
          [this](const PoolUsage& usage) { AfterStep(usage); }, auditor_.get()),
      health_(&engine_.engine(), &monitor_.step_clock(), ProbeToken(*served.api.tokenizer)),
      prefill_route_(MakePrefillRoute(served.engine)) {
  metrics_.SetUsage(served.pool->usage());
  if (served.engine.prefix_bytes > 0) LogUnsharedLevels(served.levels);
  if (served.api.draft.has_value()) LogUndraftedLevels(served.levels);
  served.api.engine = &engine_.engine();
  served.api.observer = this;
  if (auditor_ != nullptr) served.api.default_level = auditor_->default_level();
  served.api.version = options_.version;
  served.api.n_slots = served.engine.max_sequences;
  api_ = std::make_unique<api::ApiService>(std::move(served.api));
}

std::unique_ptr<Auditor> Server::MakeAuditor(const ServedModel& served) {
  if (options_.audit.share == 0) return nullptr;
  audit_metrics_.emplace(metrics_.registry(), metrics_.labels(), options_.audit.share);
  return std::make_unique<Auditor>(
      AuditedModels{served.none, served.levels, level_names_, served.threads}, options_.audit,
      &*audit_metrics_, [this](std::string_view event, const nlohmann::ordered_json& fields) {
        log_.Write(event, fields);
      });
}

std::unique_ptr<PrefillClient> Server::MakePrefillClient() {
  const RoleOptions& role = options_.role;
  if (role.role != Role::kDecode) return nullptr;
  asked_metrics_.emplace(metrics_.registry(), metrics_.labels());
  return std::make_unique<PrefillClient>(PrefillClientOptions{
      .urls = role.prefill_urls,
      .key = role.key,
      .least_tokens = role.least_tokens,
      .timeout_seconds = role.timeout_seconds,
      .on_attempt = [this](const PromptAttempt& attempt) { OnAttempt(attempt); }});
}

std::unique_ptr<PrefillRoute> Server::MakePrefillRoute(const EngineOptions& engine) {
  if (options_.role.role != Role::kPrefill) return nullptr;
  sent_metrics_.emplace(metrics_.registry(), metrics_.labels());
  PrefillRoute::Observer observer = {
      .on_began = [this](const std::string& id, int64_t n_tokens) { load_.Begin(id, n_tokens, 0); },
      .on_ended = [this](const SentPrompt& sent) { OnSent(sent); }};
  return std::make_unique<PrefillRoute>(&engine_.engine(), engine.identities, options_.role.key,
                                        std::move(observer));
}

void Server::OnAttempt(const PromptAttempt& attempt) {
  asked_metrics_->Count(attempt);
  if (attempt.reason == "nobody") return;  // those that failed before were logged
  nlohmann::ordered_json fields = {{"request_id", attempt.request_id},
                                   {"from", attempt.url},
                                   {"prompt_tokens", attempt.n_tokens},
                                   {"bytes", attempt.n_bytes},
                                   {"ms", std::round(attempt.seconds * 1e3)}};
  if (attempt.reason.empty()) return log_.Write("prompt_came", fields);
  fields["reason"] = attempt.reason;
  fields["why"] = MessageOf(attempt.status);
  log_.Write("prompt_did_not_come", fields);
}

void Server::OnSent(const SentPrompt& sent) {
  load_.End(sent.request_id, 0);
  metrics_.CountAnswer(kPrefillPath, sent.http_status);
  sent_metrics_->Count(sent);
  nlohmann::ordered_json fields = {{"request_id", sent.request_id},
                                   {"status", sent.http_status},
                                   {"prompt_tokens", sent.n_tokens},
                                   {"bytes", sent.n_bytes},
                                   {"ms", std::round(sent.seconds * 1e3)}};
  if (!sent.status.ok()) fields["error"] = MessageOf(sent.status);
  log_.Write("prompt_sent", fields);
}

void Server::OnAnswered(const AnsweredRequest& answered) {
  if (options_.logs_tokens) {
    const Request& request = answered.request;
    log_.LogTokens({.id = request.answer_id,
                    .model_hash = model_hash_,
                    .kv = level_names_[request.level],
                    .rate = request.rate,
                    .answer = {.tokens = {answered.tokens.begin(), answered.tokens.end()},
                               .n_read = answered.n_read,
                               .n_cache_prompt = answered.n_cache_prompt,
                               .n_generated = request.max_tokens}});
  }
  if (auditor_ != nullptr) auditor_->Offer(answered);
}

void Server::AfterStep(const PoolUsage& usage) {
  constexpr double kByteKindsSeconds = 0.5;  // counting them takes a millisecond of many requests
  metrics_.SetUsage(usage);
  const Engine& engine = engine_.engine();
  if (engine.n_running() > 0 && since_byte_kinds_.has_value() &&
      since_byte_kinds_->Seconds() < kByteKindsSeconds) {
    return;
  }
  metrics_.SetByteKinds(engine.RunningBytes());
  since_byte_kinds_.emplace();
}

void Server::LogListening() const {
  nlohmann::ordered_json fields = {
      {"host", options_.http.host}, {"port", port()}, {"kv", level_names_}, {"model", model_name_}};
  fields["device"] = device_;
  if (agent_ != nullptr) fields["agent_port"] = agent_->port();
  log_.Write("listening", fields);
}

void Server::LogUnsharedLevels(const std::vector<Model*>& levels) const {
  for (size_t l = 0; l < levels.size(); ++l) {
    const CacheLayout& layout = levels[l]->layout();
    const std::string_view why = SharesEndedPrompts(layout) ? "" : WhyNothingIsShared(layout);
    if (!why.empty()) log_.Write("prefixes_not_stored", {{"kv", level_names_[l]}, {"why", why}});
  }
}

void Server::LogUndraftedLevels(const std::vector<Model*>& levels) const {
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string_view why = WhyNothingIsDrafted(levels[l]->layout());
    if (!why.empty()) log_.Write("nothing_drafted", {{"kv", level_names_[l]}, {"why", why}});
  }
}

Server::~Server() {
  Drain([] { return true; });
}

void Server::Handle(http::Request request, std::shared_ptr<http::Reply> reply) {
  // The port is open before Start knows its own members.
  if (!is_started_) return reply->Send(UnavailableResponse("the server is starting"));
  if (IsHealthRoute(request)) {
    if (is_unready_) {
      return reply->Send(UnavailableResponse("the server is shutting down", "shutting_down"));
    }
    return health_.Answer(std::move(reply));
  }
  if (prefill_route_ != nullptr && request.path == kPrefillPath) {
    return HandleAsPrefill(request, std::move(reply));
  }
  if (const auto why = origins_.WhyRefused(request)) {
    return Refuse(request, reply.get(),
                  api::ErrorResponse(403, "permission_error", "origin_not_allowed", *why), *why);
  }
  if (auto answer = origins_.AnswerPreflight(request)) return reply->Send(*std::move(answer));
  if (request.method == "GET" && request.path == "/") return reply->Send(PageResponse());
  if (!keys_.Allow(request)) {
    return Refuse(request, reply.get(),
                  api::ErrorResponse(401, "authentication_error", "invalid_api_key",
                                     "give one of the server's API keys, as the header "
                                     "Authorization: Bearer KEY"),
                  "no valid API key");
  }
  if (request.method == "GET" && request.path == "/metrics") return AnswerMetrics(reply.get());
  if (auditor_ != nullptr && request.method == "GET" && request.path == "/audit") {
    return reply->Send({.body = auditor_->ToJson().dump()});
  }
  if (request.method == "GET" && request.path == "/version") {
    return reply->Send({.body = nlohmann::json{{"version", options_.version}}.dump()});
  }
  if (refuses_all_) return RefuseAtTheEnd(request, reply.get());
  if (prefill_route_ != nullptr) {
    return Refuse(request, reply.get(),
                  api::ErrorResponse(403, "permission_error", "prefill_only",
                                     "this replica reads prompts for others (--role prefill) and "
                                     "answers nothing itself; ask a replica of --role decode"),
                  "of role prefill");
  }
  if (options_.logs_bodies) log_.LogBody(request);
  request.tenant = keys_.KeyOf(request);
  api_->Handle(std::move(request), std::move(reply));
}

// Of a replica that reads prompts for others.
void Server::HandleAsPrefill(const http::Request& request, std::shared_ptr<http::Reply> reply) {
  if (!prefill_route_->Allows(request)) {
    return Refuse(request, reply.get(),
                  api::ErrorResponse(401, "authentication_error", "invalid_api_key",
                                     "give the key that both roles share (--prefill-key), as the "
                                     "header Authorization: Bearer KEY"),
                  "no valid --prefill-key");
  }
  if (refuses_all_) return RefuseAtTheEnd(request, reply.get());
  if (request.method == "POST") return prefill_route_->Handle(request, std::move(reply));
  Refuse(request, reply.get(),
         api::ErrorResponse(405, "invalid_request_error", "method_not_allowed", "use POST"),
         "not POST");
}

void Server::RefuseAtTheEnd(const http::Request& request, http::Reply* reply) {
  Refuse(request, reply,
         UnavailableResponse("the server is shutting down; ask another replica", "shutting_down"),
         "shutting down");
}

void Server::Refuse(const http::Request& request, http::Reply* reply, http::Response response,
                    const std::string& why) {
  log_.LogRefused(request, response.status, why);
  metrics_.CountAnswer("refused", response.status);
  reply->Send(std::move(response));
}

void Server::AnswerMetrics(http::Reply* reply) {
  Engine& engine = engine_.engine();
  metrics_.SetRequests(engine.n_running(), engine.n_waiting());
  metrics_.SetLoad(load_.load());
  metrics_.SetConnections(http_->n_connections());
  if (archive_ != nullptr) metrics_.SetArchive(archive_->stats());
  reply->Send(
      {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.Serialize()});
}

std::string Server::AgentLine() const {
  if (is_unready_) return "drain\n";
  return fmt::format("ready up {}%\n", load_.FreePercent(options_.agent_full_tokens));
}

void Server::OnBegan(const api::RequestBegan& began) {
  load_.Begin(began.request_id, began.prompt_tokens, began.max_tokens * began.n_choices);
}

void Server::OnFirstToken(const std::string& request_id) { load_.FirstToken(request_id); }

void Server::OnEnded(const api::RequestEnded& ended) {
  load_.End(ended.request_id, ended.output_tokens);
  metrics_.CountAnswer(ended.route, ended.http_status);
  if (!ended.level.empty()) {
    metrics_.CountEnded({.finish_reason = FinishedReason(ended),
                         .n_prompt_tokens = static_cast<int>(ended.prompt_tokens),
                         .n_output_tokens = static_cast<int>(ended.output_tokens),
                         .e2e_seconds = ended.seconds,
                         .ttft_seconds = ended.first_token_seconds});
  }
  log_.LogEnded(ended);
}

bool Server::WaitUntil(const std::function<bool()>& done, double seconds,
                       const std::function<bool()>& at_once) const {
  const Stopwatch watch;
  while (!done()) {
    if (at_once() || watch.Seconds() >= seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void Server::Drain(const std::function<bool()>& at_once, bool delays) {
  if (http_ == nullptr) return;
  is_unready_ = true;
  log_.Write("drain", {{"open_requests", http_->n_open_replies()}});
  if (delays) WaitUntil([] { return false; }, options_.drain_delay_seconds, at_once);
  refuses_all_ = true;
  http_->StopAccepting();
  const auto all_answered = [this] { return http_->n_open_replies() == 0; };
  if (!WaitUntil(all_answered, options_.shutdown_timeout_seconds, at_once)) {
    log_.Write("cancelled", {{"open_requests", http_->n_open_replies()}});
  }
  engine_.Stop();
  agent_.reset();
  http_->Stop(std::chrono::seconds(2));  // what was cancelled has an answer to write
  http_.reset();
}

}  // namespace kvlathe::server
