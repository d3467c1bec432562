// The server is an engine with its thread, the OpenAI API on HTTP, and what operators need around
// it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/api/api_service.h"
#include "server/api_keys.h"
#include "server/audit/audit_metrics.h"
#include "server/audit/auditor.h"
#include "server/engine_monitor.h"
#include "server/health_check.h"
#include "server/http/agent_port.h"
#include "server/http/http_server.h"
#include "server/load_tracker.h"
#include "server/metrics.h"
#include "server/origin_rules.h"
#include "server/prefill/prefill_client.h"
#include "server/prefill/prefill_metrics.h"
#include "server/prefill/prefill_route.h"
#include "server/request_log.h"
#include "server/serving_engine.h"

namespace kvlathe::server {

// What a replica does among others (docs/prefill_decode.md). kPrefill reads prompts for replicas of
// kDecode, and answers no requests itself. Both need EngineOptions::identities.
enum class Role { kAll, kPrefill, kDecode };

struct RoleOptions {
  Role role = Role::kAll;
  std::string key;                        // that the replicas of both roles share
  std::vector<std::string> prefill_urls;  // of kDecode
  int least_tokens = 512;                 // likewise: shorter prompts are read here
  double timeout_seconds = 10;            // likewise: PrefillClientOptions
};

struct ServerOptions {
  http::HttpServerOptions http;
  // Where HAProxy's agent check asks; 0: any free port; none: nowhere. On the host of `http`.
  std::optional<int> agent_port;
  // Tokens that wait at which the agent says 1%.
  int64_t agent_full_tokens = 65536;
  std::vector<std::string> api_keys;  // none: everybody may
  OriginOptions origins;
  double drain_delay_seconds = 0;        // between the end of /health and the first refusal
  double shutdown_timeout_seconds = 30;  // that requests under way have to end
  bool logs_bodies = false;
  bool logs_tokens = false;
  AuditOptions audit;
  RoleOptions role;
  std::string version;  // for /version
  RequestLog::Sink log;
};

// What is served. `api.engine` and `api.observer` are the server's affair, and everything that is
// pointed to outlives the server.
struct ServedModel {
  api::ApiContext api;
  std::vector<Model*> levels;  // of api.levels
  BlockPool* pool = nullptr;
  EngineOptions engine;
  std::string model_hash;  // of its weights and shape, for the log
  std::string device;      // what it runs on, for the log and the metrics
  // For the audit, which needs both: an uncompressed model of the same weights, maybe one of the
  // levels, and the threads of the models.
  Model* none = nullptr;
  ThreadPool* threads = nullptr;
};

// Routes: /health and /v1/health without a key, /metrics, /audit where there is one, /version, and
// those of ApiService.
class Server : public api::ApiObserver {
 public:
  // Serves when it returns. Errors are those of the ports.
  static StatusOr<std::unique_ptr<Server>> Start(ServedModel served, ServerOptions options);
  ~Server() override;  // as Drain(at once)

  int port() const { return http_->port(); }
  int agent_port() const { return agent_ == nullptr ? 0 : agent_->port(); }

  // /health and the agent say no from here on; then, after the delay, nothing new is accepted and
  // what is under way ends, or is cancelled after the timeout or as soon as `at_once` says so:
  // streams end with an error then. Blocks until all is over; the server is good for nothing
  // afterwards.
  void Drain(const std::function<bool()>& at_once, bool delays = true);

  void OnBegan(const api::RequestBegan& began) override;
  void OnFirstToken(const std::string& request_id) override;
  void OnEnded(const api::RequestEnded& ended) override;

 private:
  Server(ServedModel served, ServerOptions options);
  std::unique_ptr<Auditor> MakeAuditor(const ServedModel& served);
  void OnAnswered(const AnsweredRequest& answered);
  std::unique_ptr<PrefillClient> MakePrefillClient();
  std::unique_ptr<PrefillRoute> MakePrefillRoute(const EngineOptions& engine);
  void OnAttempt(const PromptAttempt& attempt);
  void OnSent(const SentPrompt& sent);
  void AfterStep(const PoolUsage& usage);
  void LogListening() const;
  void LogUnsharedLevels(const std::vector<Model*>& levels) const;
  void LogUndraftedLevels(const std::vector<Model*>& levels) const;
  void Handle(http::Request request, std::shared_ptr<http::Reply> reply);
  void HandleAsPrefill(const http::Request& request, std::shared_ptr<http::Reply> reply);
  void RefuseAtTheEnd(const http::Request& request, http::Reply* reply);
  void Refuse(const http::Request& request, http::Reply* reply, http::Response response,
              const std::string& why);
  void AnswerMetrics(http::Reply* reply);
  std::string AgentLine() const;
  // False: it waited `seconds` in vain, or at_once said yes.
  bool WaitUntil(const std::function<bool()>& done, double seconds,
                 const std::function<bool()>& at_once) const;

  ServerOptions options_;
  std::string model_name_;
  std::string device_;
  std::string model_hash_;
  std::vector<std::string> level_names_;
  RequestLog log_;
  ApiKeys keys_;
  OriginRules origins_;
  ServerMetrics metrics_;
  EngineMonitor monitor_;
  LoadTracker load_;
  std::optional<AuditMetrics> audit_metrics_;  // these two with an audit
  std::unique_ptr<Auditor> auditor_;
  std::optional<Stopwatch> since_byte_kinds_;        // of the thread that steps
  const PrefixArchive* archive_;                     // null: nothing is on disk
  std::optional<AskedPromptMetrics> asked_metrics_;  // these two of a decode replica
  std::unique_ptr<PrefillClient> prefill_client_;
  ServingEngine engine_;
  HealthCheck health_;
  std::optional<SentPromptMetrics> sent_metrics_;  // these two of a prefill replica
  std::unique_ptr<PrefillRoute> prefill_route_;
  std::unique_ptr<api::ApiService> api_;
  std::atomic<bool> is_started_ = false;   // Start has set every member
  std::atomic<bool> is_unready_ = false;   // /health and the agent say no
  std::atomic<bool> refuses_all_ = false;  // nothing new is accepted
  std::unique_ptr<http::HttpServer> http_;
  std::unique_ptr<http::AgentPort> agent_;
};

}  // namespace kvlathe::server
