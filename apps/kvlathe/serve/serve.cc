// kvlathe serve: the OpenAI API over HTTP.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>

#include "io/files.h"
#include "kvlathe/cache_loss.h"
#include "kvlathe/serve/shutdown_signals.h"
#include "kvlathe/workspace.h"
#include "server/server.h"
#include "server/tools/template_tool_support.h"
#include "tokenizer/chat/chat_ends.h"
#include "tokenizer/chat/chat_template.h"

namespace kvlathe {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::string random_model;  // --random-model
  std::string tokenizer;     // --tokenizer
  std::string chat_family;   // --chat-template; empty: the model's own
  std::vector<std::string> names;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  api::ApiLimits limits;
  EngineOptions engine = {.max_waiting = 256};
  server::ServerOptions server;
};

// What the models of the levels and the API point to.
struct Served {
  std::unique_ptr<Workspace> workspace;
  std::vector<SpecModel> levels;
  std::optional<ChatFormat> chat_format;
  std::optional<TemplateToolSupport> tool_support;
  std::optional<BlockPool> pool;
};

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
  return OkStatus();
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

// None for a model without a template, or with one that is not recognised: its chat routes then say
// so. An error where --chat-template asks for one that does not fit.
StatusOr<std::optional<ChatFormat>> FindChatFormat(const ServeOptions& options,
                                                   const ChatContext& context) {
  if (!options.chat_family.empty()) return NamedChatFormat(options.chat_family, context);
  if (options.model.model.empty()) return std::nullopt;
  StatusOr<ChatFormat> format = LoadChatFormat(options.model.model, context);
  if (format.ok()) return *std::move(format);
  const StatusCode code = format.status().code();
  if (code != StatusCode::kNotFound && code != StatusCode::kUnimplemented) return format.status();
  fmt::print(stderr, "kvlathe: note: no /v1/chat/completions: {}\n", MessageOf(format.status()));
  return std::nullopt;
}

StatusOr<std::unique_ptr<Workspace>> OpenModel(const ServeOptions& options) {
  if (options.random_model.empty()) return Workspace::Open(options.model);
  return Workspace::OpenRandomWithTokenizer(options.random_model, options.tokenizer, options.model);
}

std::vector<int32_t> EndIds(const Workspace& workspace) {
  std::vector<int32_t> ids(workspace.config().eos_ids.begin(), workspace.config().eos_ids.end());
  const auto eos = workspace.tokenizer().eos_id();
  if (eos.has_value() && std::ranges::find(ids, *eos) == ids.end()) ids.push_back(*eos);
  return ids;
}

// Grammars end where chats do: at the ends of the template too.
void AddToolSupport(Served* served) {
  const Workspace& workspace = *served->workspace;
  const ChatFormat* const format = served->chat_format ? &*served->chat_format : nullptr;
  std::vector<int32_t> end_ids = EndIds(workspace);
  if (format != nullptr) {
    const ChatEnds ends = FindChatEnds(workspace.tokenizer(), *format);
    for (const int32_t id : ends.ids) {
      if (std::ranges::find(end_ids, id) == end_ids.end()) end_ids.push_back(id);
    }
  }
  served->tool_support.emplace(
      format, Grammars::Make(workspace.tokenizer(),
                             {.n_logits = workspace.config().vocab_size, .end_ids = end_ids}));
}

StatusOr<std::unique_ptr<Served>> Load(const ServeOptions& options) {
  auto served = std::make_unique<Served>();
  KVL_ASSIGN_OR_RETURN(served->workspace, OpenModel(options));
  KVL_ASSIGN_OR_RETURN(served->chat_format,
                       FindChatFormat(options, ChatContextOf(served->workspace->tokenizer())));
  AddToolSupport(served.get());
  std::vector<std::string> specs = options.model.kv;
  if (specs.empty()) specs = {"none"};
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(SpecModel level, served->workspace->MakeModel(kv));
    if (!served->workspace->has_random_weights()) {
      KVL_RETURN_IF_ERROR(WarnOfLoss(served->workspace.get(), level));
    }
    served->levels.push_back(std::move(level));
  }
  served->pool.emplace(served->workspace->kv_budget_bytes(),
                       &served->levels.front().model->machine().memory());
  return served;
}

// "SmolLM2-135M.Q8_0" of SmolLM2-135M.Q8_0.gguf, "lathe-nano" of models/lathe-nano/.
std::string NameOfModel(const ServeOptions& options) {
  const std::string& path =
      options.model.model.empty() ? options.random_model : options.model.model;
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

server::ServedModel Describe(const ServeOptions& options, Served* served) {
  const Workspace& workspace = *served->workspace;
  server::ServedModel described;
  described.api = {.tokenizer = &workspace.tokenizer(),
                   .chat_format = served->chat_format ? &*served->chat_format : nullptr,
                   .tool_support = &*served->tool_support,
                   .model_names = options.names,
                   .created = static_cast<int64_t>(std::time(nullptr)),
                   .context_tokens = workspace.context_tokens(),
                   .end_ids = EndIds(workspace),
                   .limits = options.limits};
  if (described.api.model_names.empty()) described.api.model_names = {NameOfModel(options)};
  // As in kvlathe chat: the text of the model's own template holds its BOS.
  described.api.chat_adds_bos =
      !options.chat_family.empty() && served->chat_format && served->chat_format->start.empty();
  for (SpecModel& level : served->levels) {
    described.levels.push_back(level.model.get());
    described.api.levels.push_back({level.spec.text(), level.model.get()});
  }
  described.pool = &*served->pool;
  described.engine = options.engine;
  return described;
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

Status Serve(ServeOptions options) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  KVL_ASSIGN_OR_RETURN(options.server.api_keys, ReadKeys(options));
  options.server.version = KVLATHE_VERSION;
  options.server.log = LogToStandardError;
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Served> served, Load(options));
  RaiseFileLimit();
  const ShutdownSignals signals;
  KVL_ASSIGN_OR_RETURN(
      const std::unique_ptr<server::Server> server,
      server::Server::Start(Describe(options, served.get()), std::move(options.server)));
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
  verb->get_option("--kv")->description(
      "a cache that requests may choose by this text as their \"kv\"; repeats, the first is the "
      "default (default: none)");
  verb->add_option("--random-model", options->random_model,
                   "random weights in the shape of this config.json, to measure load");
  verb->add_option(
      "--tokenizer", options->tokenizer,
      "with --random-model: directory or .gguf file whose tokenizer and vocabulary are "
      "used");
  verb->add_option("--chat-template", options->chat_family,
                   "family (default: the model's template)")
      ->check(CLI::IsMember(ChatFamilyNames()));
  AddServerOptions(verb, options.get());
  AddLimitOptions(verb, options.get());
}

}  // namespace kvlathe
