// The auditor replays a share of the answers that were given and says how far their caches were
// from the uncompressed one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "engine/engine_observer.h"
#include "evaluation/audit/answer_replay.h"
#include "evaluation/audit/audit_figures.h"
#include "kv/blocks/block_pool.h"
#include "model/model.h"
#include "server/audit/audit_budget.h"
#include "server/audit/audit_metrics.h"
#include "server/audit/level_choice.h"

namespace kvlathe::server {

struct AuditOptions {
  // Of the answers, which are drawn by chance, and of the time while requests run. 0: no audit.
  double share = 0;
  // KV memory of the replay, beside that of requests. An answer that needs more is skipped.
  int64_t memory_bytes = int64_t{256} << 20;
  int max_queued = 16;  // answers that wait; more are skipped
  // Requests that name no level go to the smallest cache within this mean KL (LevelChoice); then
  // every answer that is drawn is replayed with every level. None: the audit changes nothing.
  std::optional<double> acts_within;
  // Tests have draws and times of their own.
  uint64_t seed = std::random_device{}();
  std::function<double()> seconds_now;  // null: a clock
};

// The models of an audit; all outlive it.
struct AuditedModels {
  Model* none = nullptr;        // uncompressed; may be one of `levels`
  std::vector<Model*> levels;   // of the engine
  std::vector<std::string> kv;  // their names
  ThreadPool* threads = nullptr;
};

// All but ToJson and default_level belong to the thread that steps the engine. A piece of work is
// at most AnswerReplay::kStepTokens of one cache, or of an answer in both.
class Auditor {
 public:
  // Called with a line of the log.
  using Log = std::function<void(std::string_view event, const nlohmann::ordered_json& fields)>;

  // `metrics` outlives it.
  Auditor(AuditedModels models, AuditOptions options, AuditMetrics* metrics, Log log);
  ~Auditor();

  // Draws whether the answer is replayed, and keeps its tokens if it is.
  void Offer(const AnsweredRequest& answered);

  bool has_work() const { return replay_ != nullptr || !queue_.empty(); }
  // Behind a step of the engine that took so long: a piece, if the share allows it.
  void AfterStep(double step_seconds);
  // While no request is there or is soon to come: a piece.
  void WorkIdle();

  // What the JSON route shows: options, what waits and was skipped, figures by cache.
  nlohmann::ordered_json ToJson() const;
  // The level of requests that name none; null where the audit does not choose it.
  const std::atomic<int>* default_level() const {
    return choice_.has_value() ? &choice_->chosen() : nullptr;
  }
  PoolUsage usage() const { return pool_.usage(); }

 private:
  // A cache that answers are replayed with.
  struct Cache {
    int level_idx = 0;
    const CacheLayout* layout = nullptr;
    std::optional<double> rate;  // rounded, so that there are few of them
  };
  struct Waiting {
    std::shared_ptr<const GivenAnswer> answer;
    Cache cache;
  };
  using Key = std::pair<int, std::optional<double>>;

  void Enqueue(const std::shared_ptr<const GivenAnswer>& answer, const Cache& cache);
  void Skip(const Cache& cache, const std::string& reason);
  double Piece();
  void Record(const ReplayScore& score);
  void Act(int level_idx, const ReplayScore& score);
  AuditLabels LabelsOf(const Cache& cache) const {
    return {models_.kv[cache.level_idx], cache.rate};
  }

  AuditedModels models_;
  AuditOptions options_;
  AuditMetrics* metrics_;
  Log log_;
  std::mt19937_64 random_;
  BlockPool pool_;
  AuditBudget budget_;
  std::deque<Waiting> queue_;
  Cache cache_;                           // of replay_
  std::unique_ptr<AnswerReplay> replay_;  // under way
  std::optional<LevelChoice> choice_;

  mutable std::mutex mutex_;
  // Under mutex_.
  std::map<Key, AuditFigures> figures_;
  std::map<std::string, int64_t> skipped_;  // by reason
  int n_queued_ = 0;
};

}  // namespace kvlathe::server
