// A Prometheus server reads these metrics at /metrics. Where a series means what one of vLLM's
// means it has that name, so that routers and dashboards which read vLLM read this; the others
// begin with kvlathe_.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/engine.h"
#include "kv/blocks/block_pool.h"
#include "kv/byte_kinds.h"

namespace prometheus {
class Registry;
}

namespace kvlathe::server {

// How much work waits, in tokens: what a router asks for.
struct QueueLoad {
  int64_t n_prompt_tokens = 0;  // of requests that have no token yet
  int64_t n_output_tokens = 0;  // expected of all that are there
  int64_t total() const { return n_prompt_tokens + n_output_tokens; }
};

// Every member may be called by any thread.
class ServerMetrics {
 public:
  // `model_name` is a label of every series. `positions_budget`: how many positions the budget of
  // KV memory holds at the least compressed level, which vLLM gives in blocks.
  ServerMetrics(const std::string& model_name, const std::string& device, int64_t kv_budget_bytes,
                int64_t positions_budget);
  ~ServerMetrics();

  // Of the engine, as EngineObserver has them.
  void CountAdmitted(double queue_ms);
  void CountPreempted();
  void CountPressed(int64_t n_positions);
  void CountDrafted(int n_checked, int n_accepted);
  void CountPrefix(int n_prompt, int n_stored);
  void CountStep(const StepWork& work, double seconds, bool failed);
  void CountFirstToken(double ttft_ms);
  void CountToken();
  void CountTokenAfter(double seconds_since_last);

  // Of a request that has ended. `route` is the path that it came by.
  struct Ended {
    std::string_view finish_reason;  // "stop", "length", "abort" or "error"
    int n_prompt_tokens = 0;
    int n_output_tokens = 0;
    double e2e_seconds = 0;
    double ttft_seconds = 0;  // 0: no token came
  };
  void CountEnded(const Ended& ended);
  // Of every answer of HTTP.
  void CountAnswer(std::string_view route, int status);

  void SetUsage(const PoolUsage& usage);
  void SetRequests(int n_running, int n_waiting);
  void SetByteKinds(const ByteKinds& kinds);  // Engine::RunningBytes
  void SetReferenceBytes(int64_t n_bytes);    // EngineLoad::reference_bytes
  void SetLoad(const QueueLoad& load);
  void SetConnections(int n_connections);
  // Rising counts, and how many files there are.
  void SetArchive(const ArchiveStats& stats);

  // For further series beside these, and what is a label of each.
  prometheus::Registry* registry();
  const std::map<std::string, std::string>& labels() const;

  // In Prometheus' text format.
  std::string Serialize() const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace kvlathe::server
