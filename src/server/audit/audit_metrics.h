// The series of /metrics that an audit has.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "evaluation/audit/answer_replay.h"

namespace prometheus {
class Registry;
}

namespace kvlathe::server {

// Of the replays with one cache: `kv` of a level, and the rate where the request had one.
struct AuditLabels {
  std::string kv;
  std::optional<double> rate;
};

// Every member may be called by any thread.
class AuditMetrics {
 public:
  // `registry` outlives it; `labels` are on every series.
  AuditMetrics(prometheus::Registry* registry, std::map<std::string, std::string> labels,
               double share);
  ~AuditMetrics();

  void CountAudited(const AuditLabels& of, const ReplayScore& score);
  void CountSkipped(const AuditLabels& of, std::string_view reason);
  void CountSeconds(double seconds, bool is_beside);
  void SetQueued(int n_queued);
  void SetBytes(int64_t n_used, int64_t n_budget);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace kvlathe::server
