// The service answers the OpenAI API: it goes from an HTTP request to requests of the engine, and
// from tokens to the answer.
// docs/server_api.md has the fields of every route.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/api_observer.h"
#include "server/api/tool_support.h"
#include "server/http/http_exchange.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe::api {

// One way to keep the KV cache, as --kv named it. Its index is Request::level.
struct ApiLevel {
  std::string name;              // the spec
  const Model* model = nullptr;  // outlives the service
};

// Bounds of one request. What is beyond answers 400, with the bound.
struct ApiLimits {
  int max_prompt_tokens = 0;  // 0: what the context holds
  int max_tokens = 0;         // that a choice may generate; 0: what the context holds
  int max_choices = 128;      // prompts times n
  int max_stops = 16;         // stop strings
  int max_stop_bytes = 1024;  // of one stop string
  int max_messages = 4096;    // of a conversation
  int max_tools = 128;
  int max_json_depth = 64;
  int max_json_values = 1 << 20;  // in one body

  // The largest number of tokens that a request may ask for.
  int MaxTokens() const { return max_tokens > 0 ? max_tokens : std::numeric_limits<int>::max(); }
};

// What the service works with. Everything that it points to outlives the service.
struct ApiContext {
  Engine* engine = nullptr;
  std::vector<ApiLevel> levels;  // at least one
  // Index of the level of requests that name none, which may change; null: the first.
  const std::atomic<int>* default_level = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  bool chat_adds_bos = false;                 // the template prints no BOS, and the model wants one
  bool reads_control_tokens = false;          // also those that users write in messages
  const ToolSupport* tool_support = nullptr;  // null: TextOnlySupport of chat_template
  std::vector<std::string> model_names;       // at least one: its id, then aliases
  int64_t created = 0;                        // of the model, in seconds since 1970
  int context_tokens = 0;                     // prompt and answer together, at most
  std::vector<int32_t> end_ids;  // at which a sequence ends (config.json and the tokenizer)
  ApiLimits limits;
  ApiObserver* observer = nullptr;                  // null: nobody looks on
  std::string version;                              // of the server
  SamplingParams sampling = {.temperature = 0.8F};  // where a request says nothing else
  std::optional<DraftOptions> draft;                // likewise, at levels whose caches have drafts
  int n_slots = 1;                                  // sequences that may run at the same time
  std::string prompt_folder;  // where prompts are saved by name; empty: nowhere
  double ping_seconds = 15;   // a stream in which nothing comes for so long gets a comment; 0: none
};

struct ApiRoute {
  std::string method;
  std::string path;  // "{id}" stands for one segment: "/v1/models/{id}"
};

// Any number of threads may call Handle. Destroy it when the engine no longer steps and no reply is
// alive: the callbacks of requests use it.
class ApiService {
 public:
  explicit ApiService(ApiContext context);
  ~ApiService();

  // Answers `request`, now or later: with tokens once the engine has them. Also what is no route:
  // 404, 405 with Allow, or 501 for what OpenAI's API has and this has not.
  void Handle(http::Request request, std::shared_ptr<http::Reply> reply);

  // Those that exist, for metrics and Allow.
  static const std::vector<ApiRoute>& Routes();
  // The pattern of Routes that `path` matches, or "other": a label of metrics.
  static std::string RouteOf(const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The error object of OpenAI's API, for whoever answers around the service (keys, drain, /health).
// `type` as OpenAI names it ("authentication_error"); an empty param or code is null.
http::Response ErrorResponse(int http_status, const std::string& type, const std::string& code,
                             const std::string& message, const std::string& param = "");

}  // namespace kvlathe::api
