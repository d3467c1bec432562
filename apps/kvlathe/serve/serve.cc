// kvlathe serve: the OpenAI API over HTTP.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "engine/drafts/draft_room.h"
#include "io/files.h"
#include "kvlathe/chat_template_options.h"
#include "kvlathe/draft_options.h"
#include "kvlathe/open_workspace.h"
#include "kvlathe/prefix_options.h"
#include "kvlathe/serve/role_options.h"
#include "kvlathe/serve/shutdown_signals.h"
#include "runtime/serving_model.h"
#include "server/opened_model.h"
#include "server/server.h"

namespace kvlathe {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::string random_model;  // --random-model
  std::string tokenizer;     // --tokenizer
  ChatTemplateOptions chat;
  std::vector<std::string> names;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  api::ApiLimits limits;
  std::string prefix_memory;  // --prefix-memory, as it was written
  PrefixOptions prefixes;
  std::string audit_memory;    // --audit-memory, likewise
  std::string draft = "none";  // --draft, checked when parsed
  EngineOptions engine = {.max_waiting = 256, .prompt_share = 0.85};
  server::ServerOptions server;
};

// An audit has something to compare, and what acts on it something to choose.
Status CheckAudit(const ServeOptions& options) {
  const server::AuditOptions& audit = options.server.audit;
  if (audit.share == 0) {
    if (!audit.acts_within.has_value() && options.audit_memory.empty()) return OkStatus();
    return Error(StatusCode::kInvalidArgument,
                 "--audit-acts and --audit-memory go with --audit SHARE, which audits");
  }
  bool has_lossy = false;
  for (const std::string& kv : options.model.kv) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    has_lossy = has_lossy || !spec.is_none();
  }
  if (!has_lossy) {
    return Error(StatusCode::kInvalidArgument,
                 "--audit compares caches with none, and there is no other; give a --kv");
  }
  if (!audit.acts_within.has_value() || options.model.kv.size() > 1) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--audit-acts chooses between levels, and there is one; give --kv twice or more");
}

Status CheckOptions(const ServeOptions& options) {
  const bool is_random = !options.random_model.empty();
  if (is_random != options.model.model.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "give one of -m MODEL and --random-model CONFIG.json");
  }
  if (is_random != !options.tokenizer.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--random-model and --tokenizer go together: random weights need the tokenizer of "
                 "a model, and another model has its own");
  }
  std::set<std::string> seen;
  for (const std::string& kv : options.model.kv) {
    if (!seen.insert(kv).second) {
      return Error(StatusCode::kInvalidArgument, "--kv {} is there twice; give each level once",
                   kv);
    }
  }
  KVL_RETURN_IF_ERROR(CheckRole(options.server.role));
  if (options.server.role.role != server::Role::kAll && options.model.ranks != nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "--role: what travels is the cache of one process, and ranks that share a model "
                 "have parts of it each; leave --tp and --pp out");
  }
  return CheckAudit(options);
}

StatusOr<std::vector<std::string>> ReadKeys(const ServeOptions& options) {
  std::vector<std::string> keys;
  for (const std::string& key : options.api_keys) {
    KVL_ASSIGN_OR_RETURN(const auto checked, server::ParseApiKeys(key, "--api-key"));
    keys.insert(keys.end(), checked.begin(), checked.end());
  }
  if (!options.api_key_file.empty()) {
    KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.api_key_file));
    KVL_ASSIGN_OR_RETURN(const auto checked, server::ParseApiKeys(text, options.api_key_file));
    keys.insert(keys.end(), checked.begin(), checked.end());
  }
  return keys;
}

StatusOr<ServingOptions> ServingOptionsOf(const ServeOptions& options) {
  ServingOptions serving;
  KVL_ASSIGN_OR_RETURN(serving.open, OpenOptionsOf(options.model));
  serving.open.step_tokens = static_cast<int>(options.engine.max_batch_tokens);
  serving.random_config = options.random_model;
  serving.tokenizer = options.tokenizer;
  serving.chat = options.chat;
  serving.needs_none = options.server.audit.share > 0;
  if (serving.needs_none) serving.kv_bytes_beside = options.server.audit.memory_bytes;
  return serving;
}

// Drafts are made at the levels that can have them; the log names the others. There has to be one.
Status CheckDrafts(const ServeOptions& options, const server::ServedModel& served) {
  if (!ParseDraft(options.draft).has_value()) return OkStatus();
  std::string whys;
  for (size_t l = 0; l < served.levels.size(); ++l) {
    const std::string_view why = WhyNothingIsDrafted(served.levels[l]->layout());
    if (why.empty()) return OkStatus();
    whys += fmt::format("{}--kv '{}': {}", l == 0 ? "" : "; ", served.api.levels[l].name, why);
  }
  return Error(StatusCode::kInvalidArgument, "--draft goes with none of the caches: {}", whys);
}

// As many connections as the system allows.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void LogToStandardError(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  fmt::print(stderr, "{}\n", line);
}

// None where the option is not given.
StatusOr<std::optional<int64_t>> ReadPrefixMemory(const std::string& text) {
  if (text.empty()) return std::optional<int64_t>();
  if (text == "0") return std::optional<int64_t>(0);
  const StatusOr<int64_t> n_bytes = ParseBytes(text);
  if (n_bytes.ok()) return std::optional<int64_t>(*n_bytes);
  return Error(StatusCode::kInvalidArgument, "--prefix-memory: {}; 0: nothing is kept",
               MessageOf(n_bytes.status()));
}

void LogPrefixTrouble(const Status& trouble) {
  server::RequestLog(LogToStandardError).Write("prefix_trouble", {{"why", MessageOf(trouble)}});
}

Status Serve(ServeOptions options) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  const server::RoleOptions& role = options.server.role;
  KVL_ASSIGN_OR_RETURN(options.server.api_keys, ReadKeys(options));
  KVL_ASSIGN_OR_RETURN(const std::optional<int64_t> prefix_bytes,
                       ReadPrefixMemory(options.prefix_memory));
  if (!options.audit_memory.empty()) {
    const StatusOr<int64_t> n_bytes = ParseBytes(options.audit_memory);
    if (!n_bytes.ok()) {
      return Error(StatusCode::kInvalidArgument, "--audit-memory: {}", MessageOf(n_bytes.status()));
    }
    options.server.audit.memory_bytes = *n_bytes;
  }
  options.server.version = KVLATHE_VERSION;
  options.server.log = LogToStandardError;
  // Before the model is loaded, which takes long.
  const http::HttpServerOptions& http = options.server.http;
  KVL_RETURN_IF_ERROR(http::HttpServer::CheckAddress(http.host, http.port));
  if (const auto port = options.server.agent_port) {
    KVL_RETURN_IF_ERROR(http::HttpServer::CheckAddress(http.host, *port));
  }
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<PrefixArchive> archive,
                       OpenArchive(options.prefixes, LogPrefixTrouble));
  if (archive != nullptr && prefix_bytes == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--prefix-dir needs some --prefix-memory: what is read from disk lies there");
  }
  if (role.role == server::Role::kDecode && prefix_bytes == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--role decode needs some --prefix-memory: what prefill replicas send lies there");
  }
  KVL_ASSIGN_OR_RETURN(const ServingOptions serving, ServingOptionsOf(options));
  KVL_ASSIGN_OR_RETURN(auto opened, OpenServingModel(serving));
  server::OpenedModel model(std::move(opened));
  RaiseFileLimit();
  const ShutdownSignals signals;
  server::ServedModel served = model.Describe(options.names, options.limits, options.engine);
  const int64_t kv_bytes = served.pool->usage().budget_bytes;
  served.engine.prefix_bytes = std::min(prefix_bytes.value_or(kv_bytes / 2), kv_bytes);
  if (archive != nullptr) {
    served.engine.archive = archive.get();
    served.api.prompt_folder = options.prefixes.folder + "/prompts";
  }
  KVL_RETURN_IF_ERROR(CheckLevelsTravel(role, served));
  KVL_RETURN_IF_ERROR(CheckDrafts(options, served));
  served.api.draft = ParseDraft(options.draft);
  if (archive != nullptr || role.role != server::Role::kAll) {
    KVL_ASSIGN_OR_RETURN(served.engine.identities, model.Identities());
  }
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<server::Server> server,
                       server::Server::Start(std::move(served), std::move(options.server)));
  const bool is_person = signals.Wait();
  // A person at a terminal has no load balancer that must learn of it first.
  server->Drain(ShutdownSignals::CameAgain, /*delays=*/!is_person);
  return OkStatus();
}

void AddServerOptions(CLI::App* verb, ServeOptions* options) {
  server::ServerOptions* server = &options->server;
  verb->add_option("--host", server->http.host, "address to listen on")->capture_default_str();
  verb->add_option("--port", server->http.port, "port; 0: a free one, which the log names")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb->add_option("--agent-port", server->agent_port,
                   "answer HAProxy's agent check on this port (0: a free one)")
      ->check(CLI::Range(0, 65535));
  verb->add_option("--agent-full-tokens", server->agent_full_tokens,
                   "waiting tokens at which the agent answers 1%")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  verb->add_option("-a,--alias,--served-model-name", options->names,
                   "names of the model in the API (default: that of its file)");
  verb->add_option("--api-key", options->api_keys,
                   "key that requests must carry; repeats (default: none is needed)")
      ->envname("KVLATHE_API_KEY");
  verb->add_option("--api-key-file", options->api_key_file, "file with a key a line");
  verb->add_option("--allow-host", server->origins.allowed_hosts,
                   "name that requests may come to, beside localhost, where the server listens on "
                   "a loopback address without keys; repeats, '*': any");
  verb->add_option("--cors-origin", server->origins.cors_origins,
                   "pages of this origin may use the server, e.g. https://chat.example; repeats, "
                   "'*': all");
  verb->add_option("--max-streams", server->http.max_connections, "open connections, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--max-body-bytes", server->http.max_body_bytes, "of one request")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--drain-delay", server->drain_delay_seconds,
                   "seconds after SIGTERM in which requests are still accepted, for a load "
                   "balancer to see that /health says no")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  verb->add_option("--shutdown-timeout", server->shutdown_timeout_seconds,
                   "seconds that requests under way have to end after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  verb->add_flag("--log-prompts", server->logs_bodies,
                 "log the bodies of requests (default: no text of users is logged)");
  verb->add_flag("--log-tokens", server->logs_tokens,
                 "log the tokens of requests and answers, which are their text, for kvlathe audit "
                 "(default: none is logged)");
}

void AddAuditOptions(CLI::App* verb, ServeOptions* options) {
  server::AuditOptions* audit = &options->server.audit;
  verb->add_option("--audit", audit->share,
                   "share of the answers to replay with none and with the cache that gave them, in "
                   "as large a share of the time, e.g. 0.01; /metrics and the page show how far "
                   "they are apart (default: 0, no audit)")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--audit-memory", options->audit_memory,
                   "KV memory of a replay, beside --kv-memory (default: 256MiB)");
  verb->add_option("--audit-acts", audit->acts_within,
                   "requests that name no level go to the smallest cache whose audited mean KL is "
                   "at most this, in nats, e.g. 0.02 (default: to the first --kv)")
      ->check(CLI::Range(0.0, 100.0));
}

void AddLimitOptions(CLI::App* verb, ServeOptions* options) {
  verb->add_option("--parallel,--max-num-seqs", options->engine.max_sequences,
                   "sequences that run at the same time, at most; -np too")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("-b,--batch-size,--max-num-batched-tokens", options->engine.max_batch_tokens,
                   "prompt and decode tokens of one step, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--prompt-share", options->engine.prompt_share,
                   "of the time while requests generate, what prompts get at most; 1: all that "
                   "steps have left")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  verb->add_option("--prefix-memory", options->prefix_memory,
                   "of the KV memory, what prompts and answers that were read before may keep, so "
                   "that they are not read again, e.g. 1GiB; 0: nothing is kept (default: half)");
  AddPrefixOptions(verb, &options->prefixes);
  AddDraftOption(verb, &options->draft);
  verb->add_option("--max-waiting", options->engine.max_waiting,
                   "requests that wait, at most; more are answered with 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--max-prompt-tokens", options->limits.max_prompt_tokens,
                   "of one prompt (default: the context)")
      ->check(CLI::Range(1, 1 << 30));
  verb->add_option("--max-tokens", options->limits.max_tokens,
                   "that one answer may have (default: the context)")
      ->check(CLI::Range(1, 1 << 30));
  verb->add_option("--max-n", options->limits.max_choices, "prompts times n of one request")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
}

}  // namespace

void AddServeVerb(Verbs* verbs) {
  auto options = std::make_shared<ServeOptions>();
  options->server.http.port = 8080;
  CLI::App* verb = verbs->Add(
      "serve", "Serve the OpenAI API over HTTP",
      "kvlathe serve -m models/fetched/smollm2.gguf --kv none --kv 'lathe(ratio=6)' --port 8080",
      [options] { return Serve(*options); });
  AddWeightOptions(verb, &options->model);
  verb->get_option("--model")->required(false);
  AddCacheOptions(verb, &options->model, "none");
  AddRankOptions(verb, verbs, &options->model, [options]() -> StatusOr<std::unique_ptr<Workspace>> {
    KVL_ASSIGN_OR_RETURN(const ServingOptions serving, ServingOptionsOf(*options));
    return OpenServedWorkspace(serving);
  });
  verb->get_option("--kv")->description(
      "a cache that requests may choose by this text as their \"kv\"; repeats, the first is the "
      "default (default: none)");
  verb->add_option("--random-model", options->random_model,
                   "random weights in the shape of this config.json, to measure load");
  verb->add_option(
      "--tokenizer", options->tokenizer,
      "with --random-model: directory or .gguf file whose tokenizer and vocabulary are "
      "used");
  AddChatTemplateOptions(verb, &options->chat);
  AddServerOptions(verb, options.get());
  AddLimitOptions(verb, options.get());
  AddRoleOptions(verb, &options->server);
  AddAuditOptions(verb, options.get());
}

}  // namespace kvlathe
