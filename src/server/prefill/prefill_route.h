// The route by which a prefill replica reads prompts for decode replicas.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/api_keys.h"
#include "server/http/http_exchange.h"

namespace kvlathe::server {

// How the sending of a prompt ended.
struct SentPrompt {
  std::string request_id;
  int http_status = 0;  // what the decode replica saw; 499: it went before
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;
  double seconds = 0;
  Status status;
};

class PrefillRoute {
 public:
  struct Observer {
    std::function<void(const std::string& request_id, int64_t n_tokens)> on_began;
    std::function<void(const SentPrompt&)> on_ended;  // of every one that began
  };

  // `engine` outlives this. `identities`: of its levels (EngineOptions). `key`: what requests carry
  // as an API key.
  PrefillRoute(Engine* engine, std::vector<SequenceIdentity> identities, std::string key,
               Observer observer);

  // A connection may have so many bytes waiting (http::HttpServerOptions::max_buffered_bytes).
  static constexpr int64_t kMaxBufferedBytes = int64_t{96} << 20;

  bool Allows(const http::Request& request) const { return keys_.Allow(request); }
  // A request of kPrefillPath that is allowed. Returns at once.
  void Handle(const http::Request& request, std::shared_ptr<http::Reply> reply);

 private:
  StatusOr<Request> RequestOf(const http::Request& request) const;

  Engine* engine_;
  const std::vector<SequenceIdentity> identities_;
  const ApiKeys keys_;
  const Observer observer_;
};

}  // namespace kvlathe::server
